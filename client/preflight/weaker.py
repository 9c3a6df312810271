"""Names every value of a site file that protects less than the program's default does.

A kit brings a site file that the coordinator wrote: what is weaker there is the hospital's to know.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from erosion.client.finding import Finding, ok, warning
from erosion.client.site_file import AppSite, Site

Weaker = Callable[[Any, Any], bool]  # of a value and its default


def _lower(value: Any, default: Any) -> bool:
    return bool(value < default)


def _higher(value: Any, default: Any) -> bool:
    """None: without a limit."""
    return default is not None and (value is None or bool(value > default))


def _other(value: Any, default: Any) -> bool:
    return bool(value != default)


def _never(_value: Any, _default: Any) -> bool:
    return False


# Which way each key of these tables protects less. A test finds a key that has no way.
DIRECTIONS: Mapping[str, Mapping[str, Weaker]] = {
    "limits": {
        "min_patients": _lower,
        "min_cell": _lower,
        "min_class": _lower,
        "min_local_steps": _lower,
        "min_batch_size": _lower,
        "max_rounds": _higher,
        "max_parameters": _higher,
        "studies": _never,  # by default all
        "models": _never,
        "installed_models": _other,  # by default none
        "as_user": _never,
        "epsilon": _higher,
        "delta": _higher,
        "sealed_only": _never,
        "min_summed": _lower,
        "largest_share": _higher,
        "summed_with": _never,
        "largest_round": _higher,
    },
    "approval": {"automatic": _other},
    "budget": {
        "studies": _higher,
        "runs_per_study": _higher,
        "rounds": _higher,
        "evaluations": _higher,
        "sets": _higher,
        "variants": _higher,
        "epsilon": _other,  # by default that of one study
    },
    "log": {"keep_days": _lower, "file_megabytes": _never},
    "compute": {
        "threads": _never,
        "device": _never,
        "state": _never,
        "public_order": _other,
        "weights": _never,
    },
    "coordinator": {
        "address": _never,
        "root_certificate": _never,
        "certificate": _never,
        "private_key": _never,
        "proxy": _other,  # through which everything goes
    },
}


def weaker_values(site: Site | AppSite) -> Iterator[tuple[str, str]]:
    """Key and value of each, with the default: ("limits.min_cell", "3 (by default 10)")."""
    for table, directions in DIRECTIONS.items():
        group = getattr(site, table, None)
        if not isinstance(group, BaseModel):
            continue
        for key, is_weaker in directions.items():
            field = type(group).model_fields[key]
            default = field.get_default(call_default_factory=True)
            value = getattr(group, key)
            if not field.is_required() and is_weaker(value, default):
                said = "one is named" if not field.repr else _word(value)
                yield f"{table}.{key}", f"{said} (by default {_word(default)})"


def check_weaker(site: Site | AppSite) -> Iterator[Finding]:
    """Every one of them, or that there is none."""
    found = False
    for key, value in weaker_values(site):
        found = True
        yield warning(
            "weaker",
            f"{key} = {value} protects this hospital's patients less than the default",
            "leave the line out, unless people here decided so",
        )
    if not found:
        yield ok("limits", "no value protects less than the program's default")


def _word(value: Any) -> str:
    if value is None or value in ((), {}):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
