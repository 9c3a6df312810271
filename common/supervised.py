"""Ending together with the program that started this one, even if that one is killed."""

import os
import signal
import sys
import threading


def end_with_stdin() -> None:
    """Interrupt this process once standard input closes: a killed supervisor's pipe does."""

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
