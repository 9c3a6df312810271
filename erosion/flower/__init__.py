"""Erosion's rules as ordinary Flower strategies: any ServerApp, any ClientApp, any model.

See docs/flower.md. Only Flower's public interface is used. Nothing here makes or reads messages of
our own link, which would change a stock ServerApp's process for Flower. Nothing is imported before
it is used: a ClientApp of NumPy needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from erosion.flower.halves import mean_and_noise
    from erosion.flower.personalized import EvidenceErosion, Personalized, WeightErosion
    from erosion.flower.reading import enrolled

__all__ = ["EvidenceErosion", "Personalized", "WeightErosion", "enrolled", "mean_and_noise"]

_HOMES = {"enrolled": "reading", "mean_and_noise": "halves"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'erosion.flower' has no attribute {name!r}")
    return getattr(import_module(f"erosion.flower.{_HOMES.get(name, 'personalized')}"), name)
