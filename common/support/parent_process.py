"""Ends a program together with the one that started it, even if that one is killed."""

import multiprocessing
import os
import signal
import threading


def end_with_stdin() -> None:
    """Interrupt this process once standard input closes: a killed supervisor's pipe does."""

    def watch() -> None:
        # Not sys.stdin: at exit Python would wait for the lock that its pending read holds.
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


def end_with_parent() -> None:
    """End this process, which `multiprocessing` started, once the one that started it has ended.

    A worker of a process pool would else wait for ever where its parent was killed.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        raise RuntimeError("this process was not started by multiprocessing")

    def watch() -> None:
        parent.join()
        os._exit(1)  # not sys.exit, which ends this thread alone

    threading.Thread(target=watch, daemon=True).start()
