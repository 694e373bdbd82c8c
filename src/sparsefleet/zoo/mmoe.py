"""MMoE (Ma et al. 2018, KDD): experts shared by all tasks, mixed by a gate per task.

In shapes, B is the number of examples, E the number of experts, T the number of tasks, and O the
width of an expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.data.features import Features
from sparsefleet.zoo.inputs import FeatureRows, Tables
from sparsefleet.zoo.layers import mlp, require_counts, require_last_width

__all__ = ["MMoE", "mix"]


def mix(experts: Tensor, gate: Tensor) -> Tensor:
    """Return experts weighted by the softmax of a gate.

    experts: float32[B, E, O], gate: float32[B, E] -> float32[B, O].
    """
    return (torch.softmax(gate, dim=1).unsqueeze(1) @ experts).squeeze(1)


class MMoE(nn.Module):
    """One logit per task, from experts over the rows and numbers.

    tasks: T, the number of labels.
    expert, tower: widths of the layers of an expert, and of a task's tower.

    >>> from sparsefleet.data.features import Categorical, Features, Label
    >>> features = Features(Categorical("ad"), label=Label("y", columns=("click", "buy")))
    >>> MMoE(features, tasks=2, expert=(8,), tower=(4,))(ad=torch.tensor([7, 8, 9])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        features: Features,
        *,
        tasks: int,
        experts: int = 4,
        expert: Sequence[int] = (128, 64),
        tower: Sequence[int] = (32,),
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_counts("MMoE", tasks=tasks, experts=experts)
        expert_width = require_last_width("MMoE", "expert", expert)
        self.rows = FeatureRows(features, tables)
        width = self.rows.flat_width()
        self.experts = nn.ModuleList(mlp(width, expert) for _ in range(experts))
        self.gates = nn.ModuleList(nn.Linear(width, experts, bias=False) for _ in range(tasks))
        self.towers = nn.ModuleList(mlp(expert_width, tower, 1) for _ in range(tasks))

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B, T]."""
        flat = self.rows.flat(inputs)
        found = torch.stack([expert(flat) for expert in self.experts], dim=1)
        logits = [
            tower(mix(found, gate(flat)))
            for gate, tower in zip(self.gates, self.towers, strict=True)
        ]
        return torch.cat(logits, dim=1)
