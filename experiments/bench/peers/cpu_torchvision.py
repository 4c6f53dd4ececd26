"""Lets torchvision be imported beside torch's CPU build.

Its usual wheel is built for CUDA, so that its operators do not load; its import only asks that these two are known.
"""

from torch.library import Library

__all__ = ["OPERATORS"]

#: Lives as long as the process: with it the operators' names would go.
OPERATORS = Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    OPERATORS.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
