"""The sub-commands of `erosion`: one file for each, and one line here."""

from erosion.commands import (
    algorithms,
    audit,
    check,
    client,
    data,
    enroll,
    experiment,
    log,
    predict,
    review,
    schema,
    server,
    site,
    status,
    study,
    testbed,
)

COMMANDS = (  # in the order of `erosion --help`
    testbed.COMMAND,
    data.COMMAND,
    experiment.COMMAND,
    study.COMMAND,
    site.COMMAND,
    enroll.COMMAND,
    server.COMMAND,
    check.COMMAND,
    review.COMMAND,
    client.COMMAND,
    status.COMMAND,
    log.COMMAND,
    audit.COMMAND,
    predict.COMMAND,
    algorithms.COMMAND,
    schema.COMMAND,
)
