"""The rules that an ordinary ClientApp can serve."""

from typing import Any

from erosion.flower.arrangement import Arrangement
from erosion_common.algorithms import REGISTRY
from erosion_common.algorithms.base import TRAIN, Algorithm, ArmBase, broadcasts_nothing
from erosion_common.errors import StudyError
from erosion_common.settings.base import validate

KEEP_AT_SITES = ("evidence_erosion", "weight_erosion")  # by default, or by a preset
MOST_ATTACHED = 64  # numbers that a reply's metrics bring for a rule


def rule_of(rule: str | ArmBase, settings: dict[str, Any]) -> ArmBase:
    """Return a rule by its name, with its settings, or as it is. Raises StudyError."""
    if isinstance(rule, ArmBase):
        made = rule
    elif rule not in REGISTRY:
        raise StudyError(f"There is no rule {rule!r}; the rules are {', '.join(REGISTRY)}.")
    else:
        if rule in KEEP_AT_SITES:  # what stays at a site is its ClientApp's business
            settings = {"own_parameters": (), **settings}
        made = validate(REGISTRY[rule], settings, f"The settings of {rule}", StudyError)
    if made.finish != "none":
        raise StudyError(
            f"finish = {made.finish!r} is a step at the user's site, which an ordinary ClientApp"
            " does not take; leave it out."
        )
    if made.own_parameters:
        raise StudyError(
            f"own_parameters = {made.own_parameters!r}: what stays at a site is for its ClientApp"
            " to keep; leave it out of the arrays that it sends and receives."
        )
    return made


def needs_more(rule: ArmBase, algorithm: Algorithm[Any], model: Arrangement) -> str:
    """Return what of a rule an ordinary ClientApp does not do; "" where it is all there."""
    kind, dim = type(rule), model.dim
    if kind.train is not ArmBase.train and rule.algorithm != "evidence_erosion":
        return "trains in its own way"
    if kind.personal is not ArmBase.personal:
        return "predicts in its own way"
    if algorithm.exchanges is not None or list(rule.site_steps()) != [TRAIN]:
        return "asks more than once in a round"
    if algorithm.broadcast is not broadcasts_nothing or algorithm.broadcast_to_peer is not None:
        return "sends more than the model"
    if any(size > MOST_ATTACHED for size in rule.attachment_sizes(dim).values()):
        return "wants more than the model back"
    return ""
