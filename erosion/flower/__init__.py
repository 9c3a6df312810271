"""Erosion's rules as ordinary Flower strategies: any ServerApp, any ClientApp, any model.

See docs/flower.md. Only Flower's public interface is used. Nothing here makes or reads messages of
our own link, which would change a stock ServerApp's process for Flower.
"""

from erosion.flower.arrangement import mean_and_noise
from erosion.flower.personalized import EvidenceErosion, Personalized, WeightErosion
from erosion.flower.reading import enrolled

__all__ = ["EvidenceErosion", "Personalized", "WeightErosion", "enrolled", "mean_and_noise"]
