"""The longest wait of a test, in seconds.

A loaded machine is slow, so no test asserts how long something took: it waits this long for what
must happen, and fails only where it does not happen at all.
"""

PATIENCE = 600.0
