"""The roles of ranks that exchange gradients in every step, or average parameters periodically."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from sparsefleet.collective import CollectiveStrategy
from sparsefleet.collective.buckets import layer_by_prefix
from sparsefleet.collective.gradient_exchange import GradientExchange
from sparsefleet.collective.local_sgd import LocalSgd
from sparsefleet.collective.reduction import Traffic, make_reductions
from sparsefleet.collective.sync_batch_norm import NormGroup
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.collective_role import CollectiveRole, RowGradient, mean_rows
from sparsefleet.fluid.collective.ranks import Ranks
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.fluid.operators.optimizers import scale_gradient

__all__ = ["GradientRole", "LocalSgdRole"]


_NOBODY = "no dense parameter"

Key = tuple[tuple[str, ...], tuple[str, ...]]
"""Dense parameters and parameters in tables whose gradients are exchanged together."""


class GradientRole(CollectiveRole):
    """Exchanges the gradients passed to `mean_over_ranks`.

    sums: whether gradients are summed over the ranks instead of averaged.
    """

    def __init__(
        self,
        ranks: Ranks,
        program: Program,
        strategy: CollectiveStrategy,
        *,
        sums: bool = False,
    ) -> None:
        super().__init__(ranks, program)
        self._strategy = strategy
        self._sums = sums
        self._traffic = Traffic()
        self._exchanges: dict[Key, GradientExchange] = {}
        self._left: list[GradientExchange] = []  # not yet finished by a run
        self._handed_in: set[str] = set()
        self.norm_group: NormGroup | None = None
        """The ranks whose batches are normalized together, if any."""

    @property
    def traffic(self) -> Traffic:
        return self._traffic

    def _begin(self, scope: Scope) -> None:
        del scope
        if self._strategy.sync_batch_norm:
            self.norm_group = NormGroup(self.world)
        for op in self.program.global_block().ops:
            if op.type == "mean_over_ranks":
                self._exchange_of(op.attrs["parameters"], op.attrs["tables"])

    def _start_run(self) -> None:
        self._left = list(self._exchanges.values())
        self._handed_in.clear()
        if self.norm_group is not None:
            self.norm_group.meet(is_present=True)

    # -- operators ------------------------------------------------------------------------------

    def watch(self, parameters: Sequence[str], values: Sequence[torch.Tensor]) -> None:
        """Send gradients as soon as this run's backward pass has computed them."""
        for name, value in zip(parameters, values, strict=True):
            value.register_hook(partial(self._hand_in, name))  # type: ignore[no-untyped-call]

    def exchange(
        self, parameters: Sequence[str], tables: Sequence[str], gradients: Sequence[Any]
    ) -> list[Any]:
        """Return the gradients combined over all ranks, in the given order: dense parameters, then
        tables.
        """
        exchange = self._exchange_of(parameters, tables)
        dense, rows = gradients[: len(parameters)], gradients[len(parameters) :]
        for name, gradient in zip(parameters, dense, strict=True):
            if name not in self._handed_in:
                exchange.ready(name, gradient)
        if not parameters:
            exchange.ready(_NOBODY, torch.zeros(1, device="cpu"))
        self._left.remove(exchange)
        count = exchange.finish()
        self._steps += 1
        found: list[Any] = [exchange.gradient(name) for name in parameters]
        found += self._rows_of_all(tables, rows, count)
        return [scale_gradient(one, None, scale=count) for one in found] if self._sums else found

    def _hand_in(self, name: str, gradient: torch.Tensor) -> None:
        self._left[0].ready(name, gradient)
        self._handed_in.add(name)

    def _exchange_of(self, parameters: Sequence[str], tables: Sequence[str]) -> GradientExchange:
        key = (tuple(parameters), tuple(tables))
        if key not in self._exchanges:
            named = [(name, self.value(name)) for name in parameters]
            self._exchanges[key] = GradientExchange(
                named or [(_NOBODY, torch.zeros(1, device="cpu"))],
                self.world,
                self._strategy,
                layer_of=layer_by_prefix,
                traffic=self._traffic,
            )
            self._left.append(self._exchanges[key])
        return self._exchanges[key]

    def _rows_of_all(
        self, tables: Sequence[str], own: Sequence[RowGradient | None], count: int
    ) -> list[RowGradient | None]:
        """Return each table's mean gradient over `count` participating ranks.

        The mean is None for a table that no rank used.
        """
        found = []
        for name, mine in zip(tables, own, strict=True):
            dim = self.value(name).dim
            found.append(mean_rows(self.world, mine, dim, count, self._traffic))
        return found

    # -- end of a run ---------------------------------------------------------------------------

    def _give_up(self) -> None:
        while self._left:
            self._left.pop(0).abandon()

    def shadow(self) -> None:
        while self._shadow_step():
            pass

    def _shadow_step(self) -> bool:
        if self.norm_group is not None:
            self.norm_group.meet(is_present=False)
        for (_, tables), exchange in self._exchanges.items():
            if not exchange.shadow():
                return False
            self._rows_of_all(tables, [None] * len(tables), 1)
        return True


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
            self._averaging.step()  # counted, so that all ranks finish the warm-up at the same step
        self._repoint()
        while self._averaging.shadow():
            pass
        self._steps_alone = 0

    def _repoint(self) -> None:
        for name, known in self._known.items():
            known.data = self.value(name).data
