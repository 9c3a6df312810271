"""This process's identity for Flower: from 1.38 on, a new Message asks for one.

Stock Flower starts a process for every task and notes its identity in it. Here one process is the
coordinator of a whole study; the numbers mean nothing, they only have to be there.
"""

from importlib import import_module

RUN_ID, COORDINATOR_NODE_ID = 1, 1


def identify() -> None:
    """Make `flwr.app.Message(...)` usable in this process, whatever the version of flwr."""
    try:
        identity = import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:  # up to 1.37 a message asks for nothing
        return
    identity.task_id, identity.run_id, identity.node_id = 1, RUN_ID, COORDINATOR_NODE_ID
