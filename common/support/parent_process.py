"""Ends a program together with the one that started it, even if that one is killed."""

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
