"""The role of ranks that train alone and average their parameters periodically."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.reduction import make_reductions
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.gradient_role import GradientRole
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope

__all__ = ["LocalSgdRole"]

_log = logging.getLogger("sparsefleet.fluid")


class LocalSgdRole(GradientRole):
    """Exchanges gradients during warm-up and, after that, averages parameters on a schedule."""

    def __init__(self, ranks: Ranks, program: Program, strategy: CollectiveStrategy) -> None:
        super().__init__(ranks, program, strategy)
        if strategy.local_sgd is None:
            raise ConfigError("LocalSgdRole needs a CollectiveStrategy with local_sgd")
        self._config = strategy.local_sgd
        self._local: LocalSgd | None = None
        # The parameters that LocalSgd works on; they get the scope's values before each use.
        self._known: dict[str, torch.Tensor] = {}
        self._steps_alone = 0

    @property
    def _averaging(self) -> LocalSgd:
        assert self._local is not None
        return self._local

    @property
    def num_meetings(self) -> int:
        """Return how many times parameters were averaged."""
        return self._averaging.num_meetings

    def _begin(self, scope: Scope) -> None:
        super()._begin(scope)
        (op,) = [op for op in self.program.global_block().ops if op.type == "average_over_ranks"]
        self._known = {name: self.value(name).detach() for name in op.attrs["parameters"]}
        (reduction, *_) = make_reductions(self.world, CollectiveStrategy(), self.traffic)
        self._local = LocalSgd(self._known.items(), self.world, self._config, reduction=reduction)

    # -- operators ------------------------------------------------------------------------------

    def watch(self, parameters: Sequence[str], values: Sequence[torch.Tensor]) -> None:
        if self._averaging.is_warming:
            super().watch(parameters, values)

    def exchange(
        self, parameters: Sequence[str], tables: Sequence[str], gradients: Sequence[Any]
    ) -> list[Any]:
        if self._averaging.is_warming:
            return super().exchange(parameters, tables, gradients)
        self._left.clear()
        return list(gradients)

    def average(
        self,
        parameters: Sequence[str],
        values: Sequence[torch.Tensor],
        loss: torch.Tensor | None,
    ) -> None:
        """After a step, write the mean over the ranks to `values` if averaging is due."""
        for name, value in zip(parameters, values, strict=True):
            self._known[name].data = value.data
        was_warming = self._averaging.is_warming
        has_met = self._averaging.step(None if loss is None else loss.detach().mean())
        self._steps_alone = 0 if was_warming or has_met else self._steps_alone + 1
        if not was_warming:
            self._steps += 1

    # -- end of a run ---------------------------------------------------------------------------

    def before_saving(self, scope: Scope) -> None:
        del scope
        if self._steps_alone:
            _log.warning(
                "rank %d saves its own values, %d steps after the last averaging; to save the "
                "mean, call fleet.settle() on all ranks first",
                self.ranks.rank,
                self._steps_alone,
            )

    def _give_up(self) -> None:
        if self._averaging.is_warming:
            super()._give_up()
        self._left.clear()

    def shadow(self) -> None:
        while self._averaging.is_warming:
            if not self._shadow_step():
                return
            self._averaging.step()  # counted, so that all ranks end the warm-up at the same step
        self._repoint()
        while self._averaging.shadow():
            pass
        self._steps_alone = 0

    def _repoint(self) -> None:
        for name, known in self._known.items():
            known.data = self.value(name).data
