"""Federated averaging in which every hospital keeps its own output bias."""

from typing import Literal

from erosion.common.algorithms.fedavg import Averaging
from erosion.common.algorithms.personal_layers import OUTPUT_BIAS


class PersonalIntercept(Averaging):
    """FedAvg, except that every hospital has an output bias of its own, which it never sends.

    The bias starts at the hospital's base rates and is trained like everything else; the user
    predicts with the common parameters and its own bias. Use it where the hospitals' patients
    differ mainly in how common the disease is, which is usual.
    Parameters: `weighting` ("samples" or "uniform") and `own_parameters` (what else is kept).
    Source: FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019) with
    the smallest of layers.
    """

    algorithm: Literal["personal_intercept"] = "personal_intercept"
    own_parameters: tuple[str, ...] = (OUTPUT_BIAS,)
