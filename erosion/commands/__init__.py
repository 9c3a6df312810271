"""The sub-commands of `erosion`, in the order of its `--help`."""

from erosion.commands import (
    coordinator,
    describe,
    drafts,
    experiments,
    hospital,
    lists,
    records,
)

COMMANDS = (
    experiments.TESTBED,
    experiments.DATA,
    experiments.EXPERIMENT,
    drafts.STUDY,
    drafts.SITE,
    coordinator.ENROLL,
    coordinator.SERVER,
    hospital.CHECK,
    hospital.REVIEW,
    describe.COMMAND,
    hospital.CLIENT,
    records.STATUS,
    records.LOG,
    records.AUDIT,
    hospital.PREDICT,
    lists.ALGORITHMS,
    lists.MODELS,
    lists.SCHEMA,
)
