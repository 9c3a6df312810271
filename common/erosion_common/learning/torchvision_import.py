"""Imports torchvision with a CPU-only torch.

The wheels of torchvision register C++ operators against the CUDA build of torch. With the CPU build
that registration is missing, and `import torchvision` stops because it describes two operators
(`nms` and `qnms`) that do not exist. Declaring their schemas first is enough for models, transforms
and datasets, none of which calls them.
"""

import torch

from erosion_common.errors import ModelError
from erosion_common.support.software import torchvision_problem

_declared = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
try:
    from torchvision import datasets, models
except (RuntimeError, ImportError):
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        _declared.define(schema)  # type: ignore[no-untyped-call]
    try:
        from torchvision import datasets, models
    except (RuntimeError, ImportError, AttributeError) as problem:
        if said := torchvision_problem(problem):
            raise ModelError(f"{said}.") from None
        raise

__all__ = ["datasets", "models"]
