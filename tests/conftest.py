"""Settings shared by all tests."""

from hypothesis import settings

# Property tests draw the same examples on every machine, so that a failure in CI repeats at home.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")
