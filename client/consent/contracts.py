"""What a study holds a hospital's columns against, by the name of each."""

from erosion.client.dataset.sources.data_source import TableSource
from erosion.client.site_file import Site
from erosion.common.study.study import Study
from erosion.common.tasks.inputs import TabularTask


def contracts_of(study: Study, *, by_earlier_version: bool = False) -> dict[str, str]:
    """By column, all that decides whether a hospital's values of it are accepted.

    `by_earlier_version`: as one wrote them that did not say whether an outcome may be missing.
    """
    task = study.task
    contracts = {column.name: repr(column) for column in task.target_columns}
    if isinstance(task, TabularTask):
        for feature in task.features:
            said = feature.model_dump_json(include={"type", "range", "categories"})
            contracts[feature.name] = f"{said} {task.policy(feature)}"
    if by_earlier_version:
        return contracts
    if isinstance(task, TabularTask):
        for column in task.target_columns:  # a patient without an outcome may be left out
            contracts[column.name] += " refuse" if task.missing == "refuse" else " drop"
    if (split := study.evaluation.split_column) is not None:  # neither a feature nor a target
        contracts[split] = "which part"
    return contracts


def contracts_at(site: Site, study: Study, *, by_earlier_version: bool = False) -> dict[str, str]:
    """The same for this hospital's data, also by what a column is called there.

    A study may name a column either way, or both: it is one column, and what is asked of it at once
    is one question.
    """
    said: dict[str, set[str]] = {}
    for name, contract in contracts_of(study, by_earlier_version=by_earlier_version).items():
        for known_as in (name, local_name(site, name)):
            said.setdefault(known_as, set()).add(contract)
    return {name: " and ".join(sorted(contracts)) for name, contracts in said.items()}


def local_name(site: Site, name: str) -> str:
    """What a study's column is called in this hospital's data."""
    return site.data.local_name(name) if isinstance(site.data, TableSource) else name
