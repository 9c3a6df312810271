"""What forked processes import: as programs do, without looking through it for garbage."""

from importlib import import_module

from erosion_common.support.process import imports_for_good

with imports_for_good():
    for name in (
        "torch",
        "torch._dynamo",  # what the first optimiser imports
        "erosion_server.coordination.run_study",
        "pyarrow.compute",  # what the first table imports
        "tests.support.programs",
        "tests.support.killed_coordinator",
    ):
        import_module(name)
