"""Pool rows by sequence. In shapes, B is the number of sequences and N the total number of rows."""

from __future__ import annotations

import numpy as np
import torch

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.nn.sparse_embedding_bag import BagsOfLengths

__all__ = ["pool_bags"]


def pool_bags(
    rows: torch.Tensor, lod: Lod, pooltype: str, pad_value: float
) -> tuple[torch.Tensor, Lod]:
    """Pool rows [N, ...] by their LoD to [B, ...]; also return the remaining LoD.

    pooltype: SUM, AVERAGE, or SQRT (the sum divided by the square root of the length).
    pad_value: the value for sequences without rows. Raises ValueError if there is no LoD.

    >>> rows, lod = torch.tensor([[1.0], [2.0], [3.0]]), (torch.tensor([0, 2, 3]),)
    >>> pool_bags(rows, lod, "AVERAGE", 0.0)[0]
    tensor([[1.5000],
            [3.0000]])
    """
    if not lod:
        raise ValueError("input X has no LoD; feed a LoDTensor (fluid.create_lod_tensor)")
    lengths = np.diff(lod[-1].cpu().numpy())
    if (lengths == 1).all():  # every kind of pooling returns the row itself
        return rows, lod[:-1]
    on_device = torch.from_numpy(lengths).to(rows.device)
    pooled = BagsOfLengths(on_device)(rows, 0)
    column = on_device.reshape(-1, *[1] * (rows.dim() - 1))
    if pooltype != "SUM":
        divisor = column.clamp(min=1).to(rows.dtype)
        pooled = pooled / (divisor if pooltype == "AVERAGE" else divisor.sqrt())
    if pad_value and not lengths.all():
        pooled = torch.where(column == 0, torch.full_like(pooled, pad_value), pooled)
    return pooled, lod[:-1]
