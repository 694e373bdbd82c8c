"""A program made ready to run, for given feeds and fetches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

__all__ = ["Lod", "Lowered", "RunResult", "making_on"]

Lod = tuple[torch.Tensor, ...]
"""Offsets int64 of each level, outermost first; () where there are no sequences."""


@dataclass(slots=True)
class RunResult:
    """What a run gave."""

    fetched: Sequence[Any]
    lods: Sequence[Lod]
    written: Mapping[str, Any]
    """New values of variables that are kept."""


@dataclass(kw_only=True, slots=True)
class Lowered:
    """An fx.GraphModule, and what it takes: feeds, then their LoD, then kept variables."""

    module: fx.GraphModule
    feeds: tuple[str, ...]
    lods: tuple[str, ...]
    """Feeds whose LoD is used."""
    states: tuple[str, ...]
    """Variables of the scope that are read or changed."""
    writes: tuple[str, ...]
    trained: frozenset[str] = field(default_factory=frozenset)
    """Feeds and states that autograd has to know."""
    used: frozenset[str] = field(default_factory=frozenset)
    """States that an operator needs, not only a fetch."""
    has_backward: bool = False
    device: torch.device | None = None
    """Where it runs; None: there is nothing but the CPU."""

    def run(self, feeds: Mapping[str, Any], lods: Mapping[str, Lod], state_of: Any) -> RunResult:
        """One run. `state_of(name)` gives tensors or tables of the scope."""
        arguments = self.arguments(feeds, lods, state_of)
        with torch.set_grad_enabled(self.has_backward), making_on(self.device):
            fetched, found_lods, written = self.module(*arguments)
        return RunResult(fetched, found_lods, dict(zip(self.writes, written, strict=True)))

    def arguments(
        self, feeds: Mapping[str, Any], lods: Mapping[str, Lod], state_of: Any
    ) -> list[Any]:
        """What the module takes for a run, in order."""
        if self.device is not None:
            feeds = {name: feeds[name].to(self.device) for name in self.feeds}
            lods = {name: tuple(x.to(self.device) for x in lods[name]) for name in self.lods}
        taken = [self._known(name, feeds[name]) for name in self.feeds]
        taken += [lods.get(name, ()) for name in self.lods]
        taken += [self._known(name, state_of(name)) for name in self.states]
        return taken

    def _known(self, name: str, value: Any) -> Any:
        if name in self.trained and isinstance(value, torch.Tensor):
            # Its own count of changes: other threads change the values while this one runs.
            return value.data.requires_grad_()
        return value


def making_on(device: torch.device | None) -> AbstractContextManager[object]:
    """Within, operators make their tensors there. That costs a little for each call of torch, so
    it is done for a GPU alone."""
    return nullcontext() if device is None or device.type == "cpu" else device
