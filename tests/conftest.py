"""Settings shared by all tests."""

import gc
import signal

from hypothesis import settings

# Property tests draw the same examples on every machine, so that a failure in CI repeats at home.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

# A script's background job ignores Ctrl-C, and so would every program that is started from here,
# also where a test is about Ctrl-C. A program is started with the default where we have a handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What collecting imports stays, so it is not looked through for garbage: not while it is imported,
# which would take a third of that time, and in no test.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()
