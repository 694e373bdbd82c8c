"""PLE (Tang et al. 2020, RecSys): experts per task and shared experts, in several layers.

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
from sparsefleet.zoo.mmoe import mix

__all__ = ["PLE"]


class Experts(nn.ModuleList):
    """Parallel experts: float32[B, I] -> float32[B, E, O]."""

    def __init__(self, width: int, count: int, hidden: Sequence[int]) -> None:
        super().__init__(mlp(width, hidden) for _ in range(count))

    def forward(self, state: Tensor) -> Tensor:
        return torch.stack([expert(state) for expert in self], dim=1)


class ExtractionLayer(nn.Module):
    """Mixes each task's own experts with the shared experts; the shared part mixes all experts.

    width: the width of each of the T + 1 inputs, one per task followed by the shared input.
    experts: number of experts per task, and of shared experts.
    expert: widths of the layers of an expert.
    is_last: whether this is the last layer, which has no shared output.
    """

    def __init__(
        self, width: int, tasks: int, *, experts: int, expert: Sequence[int], is_last: bool
    ) -> None:
        super().__init__()
        self.groups = nn.ModuleList(  # experts of each task, then the shared experts
            Experts(width, experts, expert) for _ in range(tasks + 1)
        )
        self.gates = nn.ModuleList(nn.Linear(width, 2 * experts, bias=False) for _ in range(tasks))
        everything = (tasks + 1) * experts
        self.shared_gate = None if is_last else nn.Linear(width, everything, bias=False)

    def forward(self, states: list[Tensor]) -> list[Tensor]:
        """Map T + 1 states float32[B, I] to T + 1 states float32[B, O], or T in the last layer."""
        found = [group(state) for group, state in zip(self.groups, states, strict=True)]
        mixed = [
            mix(torch.cat([own, found[-1]], dim=1), gate(state))
            for own, gate, state in zip(found, self.gates, states, strict=False)
        ]
        if self.shared_gate is not None:
            mixed.append(mix(torch.cat(found, dim=1), self.shared_gate(states[-1])))
        return mixed


class PLE(nn.Module):
    """One logit per task, from progressively separated experts.

    >>> from sparsefleet.data.features import Categorical, Features, Label
    >>> features = Features(Categorical("ad"), label=Label("y", columns=("click", "buy")))
    >>> PLE(features, tasks=2, expert=(8,), tower=(4,))(ad=torch.tensor([7, 8, 9])).shape
    torch.Size([3, 2])
    """

    def __init__(
        self,
        features: Features,
        *,
        tasks: int,
        layers: int = 2,
        experts: int = 2,
        expert: Sequence[int] = (64,),
        tower: Sequence[int] = (32,),
        tables: Tables | None = None,
    ) -> None:
        super().__init__()
        require_counts("PLE", tasks=tasks, layers=layers, experts=experts)
        expert_width = require_last_width("PLE", "expert", expert)
        self.rows = FeatureRows(features, tables)
        widths = [self.rows.flat_width(), *[expert_width] * (layers - 1)]
        self.tasks = tasks
        self.layers = nn.Sequential(
            *(
                ExtractionLayer(
                    width, tasks, experts=experts, expert=expert, is_last=place == layers - 1
                )
                for place, width in enumerate(widths)
            )
        )
        self.towers = nn.ModuleList(mlp(expert_width, tower, 1) for _ in range(tasks))

    def forward(self, **inputs: Any) -> Tensor:
        """Return logits, float32[B, T]."""
        states = self.layers([self.rows.flat(inputs)] * (self.tasks + 1))
        logits = [tower(state) for tower, state in zip(self.towers, states, strict=True)]
        return torch.cat(logits, dim=1)
