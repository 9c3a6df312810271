"""Erosion's rules as ordinary Flower strategies: any ServerApp, any ClientApp, any model.

Nothing here knows of studies, sites or our own line; see docs/flower.md. Only Flower's public
interface is used.
"""

from erosion.flower.halves import mean_and_noise
from erosion.flower.personalized import EvidenceErosion, Personalized, WeightErosion

__all__ = ["EvidenceErosion", "Personalized", "WeightErosion", "mean_and_noise"]
