"""`erosion validate`: a finished run's model at hospitals that have not measured it yet."""

from collections.abc import Callable, Sequence
from pathlib import Path

from erosion_common.aggregation.cohort import HospitalName
from erosion_common.errors import RunError
from erosion_common.formats.json_file import write_json
from erosion_common.formats.model_card import read_model
from erosion_common.formats.sent_log import Witness
from erosion_common.rounds.context import RunContext
from erosion_common.rounds.presence import Presence
from erosion_common.rounds.validation import Delivered, measured_at, trained_by
from erosion_common.settings.base import validate as validated_settings
from erosion_common.study.study import Study
from erosion_server.coordination.end_notices import EndNotices
from erosion_server.coordination.network import NetworkChannel
from erosion_server.link import Link
from erosion_server.output.report import write_report
from erosion_server.output.run_data import RunData, check_card, read_run
from erosion_server.run.result import study_as_run
from erosion_server.run.run_folder import RunFolder

LOOK_SECONDS = 1.0


def study_to_measure(run: RunData, at: Sequence[HospitalName]) -> Study:
    """Return the run's study as run, or with the hospitals `at` another one. Raises RunError."""
    study = study_as_run(run.study, run.result)
    further = [name for name in at if name not in study.everyone]
    if study.validation is None and not at:
        raise RunError(
            "The run's study has no [validation], so no hospital has approved to measure its model",
            remedy="Name hospitals that may be asked with --at; their people then decide about"
            " that.",
        )
    if not further and study.validation is not None:
        return study
    hospitals = [*study.only_measuring, *further]
    values = {**study.model_dump(), "validation": {"hospitals": hospitals}}
    return validated_settings(Study, values, "--at", RunError)


def measure_later(
    folder: RunFolder,
    at: Sequence[HospitalName],
    make_link: Callable[[Sequence[HospitalName]], Link],
    seconds: float | None,
    tell: Callable[[str], None],
) -> Path:
    """Ask the hospitals that come within `seconds`; return the report, written again.

    `at`: hospitals to ask, which the study need not name; none: all that have not measured yet.
    Raises RunError, and LinkError or EnrolmentError for the link.
    """
    run = read_run(folder)
    study = study_to_measure(run, at)
    measured = {name for name, found in run.result.validation.items() if found.metrics is not None}
    wanted = [name for name in at or study.everyone if name not in {*measured, run.result.user}]
    if not wanted:
        raise RunError("Every hospital that is named has measured this model, or is its user.")
    card, delivered = read_model(folder.path)
    check_card(card, folder)
    model = Delivered(card.arm, delivered, card.scaling, card.missing_means)
    write_json(folder.result, run.result)  # if that fails, before anybody has been asked
    link = make_link(study.everyone)
    link.start()
    try:
        notices = EndNotices(link)
        notices.begin(folder.run, study.everyone)
        grid = link.open()
        channel = NetworkChannel(
            study,
            grid,
            link if link.enrolled_only else None,
            end_notices=notices,
            run=folder.run,
            witness=Witness(folder.witness),
        )
        presence = Presence(study, channel, lambda _: None, address=link.address_for_sites)
        tell(f"Listening on {link.address} for {', '.join(wanted)} ...")
        end = channel.now() + (seconds or study.federation.join_deadline_seconds)
        presence.refresh()
        while (left := end - channel.now()) > 0 and any(
            name not in presence.members and name not in presence.declined for name in wanted
        ):
            channel.wait_for_change(min(left, LOOK_SECONDS))
            presence.refresh()
        ctx = RunContext(study=study, channel=channel, presence=presence, run=folder.run)
        found = measured_at(ctx, wanted, model, trained_by(run.of(card.arm)))
        channel.close()
        notices.say(folder.run)
        grid.close()
    finally:
        link.stop()
    for name, each in found.items():
        tell(f"{name}: {'measured' if each.metrics is not None else each.why_not}")
    validation = {**run.result.validation, **found}
    write_json(folder.result, run.result.model_copy(update={"validation": validation}))
    return write_report(folder.path)
