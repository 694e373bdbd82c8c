"""What all modules over a sparse table have in common."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn.distinct_rows import DistinctRows
from sparsefleet.nn.lookup import Lookup, check_ids
from sparsefleet.nn.row_state import from_state, no_rows, state_without_rows, to_state
from sparsefleet.nn.step_rows import Gradient, StepRows, active_step
from sparsefleet.nn.table_home import PendingStep, TableHome
from sparsefleet.store import RemoteStore, Store, TableSpec
from sparsefleet.store.optimizers import Adagrad, Optimizer
from sparsefleet.store.store import Unknown

_log = logging.getLogger("sparsefleet.nn")

# Lookups kept for apply_gradients() at which somebody seems to have forgotten to call it.
_MANY_PENDING = 10_000


class SparseModule(nn.Module):
    """A module whose rows live in a table of a store, not in parameters.

    Base of SparseEmbedding and SparseEmbeddingBag.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        optimizer: Optimizer | None,
        padding_id: int | None,
        unknown: Unknown,
        store: Store | None,
    ) -> None:
        super().__init__()
        if unknown not in get_args(Unknown):
            raise ConfigError(
                f"{type(self).__name__} '{spec.name}': unknown must be 'zeros' or 'initial', "
                f"got {unknown!r}"
            )
        if padding_id is not None and not _is_id(padding_id):
            raise ConfigError(
                f"{type(self).__name__} '{spec.name}': padding_id must be None or an int64, "
                f"got {padding_id!r}"
            )
        self.name = spec.name
        """The table's name; modules of one name share rows where they share a store."""
        self.dim = spec.dim
        self.padding_id = padding_id
        self.unknown: Unknown = unknown
        self.own_optimizer = optimizer
        """As given; None takes the trainer's."""
        self.carries_rows = True
        """False where another module of the same table puts the rows into the state_dict."""
        self._spec = spec
        self.home = TableHome(spec.name, store)
        """Where the rows live; shared with copies of this module."""
        self._pending = PendingStep()

    @property
    def store(self) -> Store | None:
        """The store with the rows, or None before the first use."""
        return self.home.store

    def spec(self, default: Optimizer | None = None) -> TableSpec:
        """The table as this module wants it; ``default`` is the optimizer if it names none."""
        return replace(self._spec, optimizer=self.own_optimizer or default or Adagrad())

    def get_extra_state(self) -> dict[str, Any]:
        """Keys, values and optimizer state for `state_dict`, if they are in this process."""
        if not self.carries_rows:
            return state_without_rows("shared")
        saved = self.home.save()
        if saved is None and isinstance(self.home.store, RemoteStore):
            return state_without_rows("servers")
        return to_state(saved or no_rows(self.spec()))

    def set_extra_state(self, state: Any) -> None:
        """Takes the rows of `load_state_dict` over, in place of those there are."""
        saved = from_state(self.name, self.dim, state)
        if saved is not None:
            self.home.load(saved)

    def take_gradients(self) -> dict[str, Gradient]:
        """Table -> unique keys and summed gradients of lookups outside of any step.

        They are forgotten here: whoever takes them pushes them (see `apply_gradients`).
        """
        step, self._pending.step = self._pending.step, None
        return step.gradients() if step else {}

    def extra_repr(self) -> str:
        bound = self.home.spec
        optimizer = self.own_optimizer or (bound and bound.optimizer)
        padding = "" if self.padding_id is None else f", padding_id={self.padding_id}"
        return f"{self.name!r}, dim={self.dim}, optimizer={optimizer}{padding}"

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ``ids``: float32[*ids.shape, D]; where the ids are, if that is a GPU."""
        if isinstance(ids, torch.Tensor) and ids.is_cuda:
            return self._look_up(ids.cpu()).to(ids.device)
        step, lookup, train = self._begin_lookup(ids)
        return step.look_up(lookup, train=train)

    def look_up_distinct(self, ids: torch.Tensor) -> DistinctRows:
        """The distinct rows of ``ids``, for operators that need no copy for every id."""
        step, lookup, train = self._begin_lookup(ids)
        return step.look_up_distinct(lookup, train=train)

    def _begin_lookup(self, ids: torch.Tensor) -> tuple[StepRows, Lookup, bool]:
        """The step to look up in, and whether rows take part in training."""
        check_ids(self.name, ids)
        lookup = Lookup(self.name, self.dim, ids, padding_id=self.padding_id, unknown=self.unknown)
        train = self.training and torch.is_grad_enabled()
        step = active_step()
        if step is None:
            self.home.open(self.spec)
            step = self._pending_step() if train else StepRows(self.home.pull, train=False)
        return step, lookup, train

    def _pending_step(self) -> StepRows:
        step = self._pending.step
        if step is None:
            step = self._pending.step = StepRows(self.home.pull)
        if len(step.lookups) == _MANY_PENDING:
            _log.warning(
                "table '%s': %d lookups in training and no apply_gradients(model) since; "
                "their gradients wait in memory (evaluate under eval() or torch.no_grad())",
                self.name,
                _MANY_PENDING,
            )
        return step


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
