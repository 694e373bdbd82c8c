"""The base class of all modules whose rows live in a sparse table."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import nn
from torch._compile import _disable_dynamo

from sparsefleet.errors import ConfigError
from sparsefleet.nn.lookup import Lookup, check_ids
from sparsefleet.nn.pulled_rows import DistinctRows
from sparsefleet.nn.step_rows import Gradient, StepRows, active_step
from sparsefleet.nn.table_home import (
    PendingStep,
    TableHome,
    from_state,
    no_rows,
    state_without_rows,
    to_state,
)
from sparsefleet.store import RemoteStore, Store, TableSpec
from sparsefleet.store.optimizers import Adagrad, Optimizer, check_optimizer
from sparsefleet.store.store import Unknown

_log = logging.getLogger("sparsefleet.nn")

# At this many pending lookups, apply_gradients() has probably been forgotten. Small enough to warn
# within the first minute, large enough for gradient accumulation over a few steps.
_MANY_PENDING = 200


class SparseModule(nn.Module):
    """A module whose rows live in a table of a store, not in parameters.

    Base class of SparseEmbedding and SparseEmbeddingBag.
    """

    def __init__(
        self,
        spec: TableSpec,
        *,
        optimizer: Optimizer | None,
        padding_idx: int | None,
        unknown: Unknown,
        store: Store | None,
    ) -> None:
        super().__init__()
        if unknown not in get_args(Unknown):
            raise ConfigError(
                f"{type(self).__name__} '{spec.name}': `unknown` must be 'zeros' or 'initial', "
                f"got {unknown!r}"
            )
        if padding_idx is not None and not _is_id(padding_idx):
            raise ConfigError(
                f"{type(self).__name__} '{spec.name}': padding_idx must be None or an int64, "
                f"got {padding_idx!r}"
            )
        if optimizer is not None:
            check_optimizer(optimizer, f"{type(self).__name__} '{spec.name}': optimizer")
        if isinstance(store, type):
            raise ConfigError(
                f"{type(self).__name__} '{spec.name}': store must be an instance, got the class "
                f"{store.__name__}: pass {store.__name__}(...)"
            )
        self.name = spec.name
        """The table's name; modules with the same name and store share rows."""
        self.dim = spec.dim
        self.padding_idx = padding_idx
        self.unknown: Unknown = unknown
        self.own_optimizer = optimizer
        """The optimizer that the module was created with; None uses the trainer's optimizer."""
        self.carries_rows = True
        """False if a different module of the same table puts the rows into the state_dict."""
        self._spec = spec
        self.home = TableHome(spec.name, store)
        """Where the rows live; shared with copies of this module."""
        self._pending = PendingStep()

    @property
    def store(self) -> Store | None:
        """The store that holds the rows; None before first use."""
        return self.home.store

    def spec(self, default: Optimizer | None = None) -> TableSpec:
        """Return the spec of this module's table.

        If the module has no optimizer, ``default`` is used.
        """
        return replace(self._spec, optimizer=self.own_optimizer or default or Adagrad())

    def get_extra_state(self) -> dict[str, Any]:
        """Return keys, values and optimizer state for `state_dict`, if the rows are local."""
        if not self.carries_rows:
            return state_without_rows("shared")
        saved = self.home.save()
        if saved is None and isinstance(self.home.store, RemoteStore):
            return state_without_rows("servers")
        return to_state(saved or no_rows(self.spec()))

    def set_extra_state(self, state: Any) -> None:
        """Replace the table's rows with the rows passed to `load_state_dict`."""
        saved = from_state(self.name, self.dim, state)
        if saved is not None:
            self.home.load(saved)

    def take_gradients(self) -> dict[str, Gradient]:
        """Return, by table, the distinct keys and summed gradients of lookups outside any step.

        The module then forgets these gradients, so the caller must push them (see
        `apply_gradients`).
        """
        step, self._pending.step = self._pending.step, None
        return step.gradients() if step else {}

    def extra_repr(self) -> str:
        bound = self.home.spec
        optimizer = self.own_optimizer or (bound and bound.optimizer)
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.name!r}, dim={self.dim}, optimizer={optimizer}{padding}"

    def _look_up(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of ``ids``: float32[*ids.shape, D], on the device of the ids."""
        if torch.compiler.is_dynamo_compiling():
            return _look_up_outside_graph(self, ids)
        return self._look_up_eagerly(ids)

    def _look_up_eagerly(self, ids: torch.Tensor) -> torch.Tensor:
        if isinstance(ids, torch.Tensor) and ids.is_cuda:
            return self._look_up_eagerly(ids.cpu()).to(ids.device)
        step, lookup, train = self._begin_lookup(ids)
        return step.look_up(lookup, train=train)

    def look_up_distinct(self, ids: torch.Tensor) -> DistinctRows:
        """Return the distinct rows of ``ids``, for operators that need no copy per id."""
        if torch.compiler.is_dynamo_compiling():
            return _look_up_distinct_outside_graph(self, ids)
        return self.look_up_distinct_eagerly(ids)

    def look_up_distinct_eagerly(self, ids: torch.Tensor) -> DistinctRows:
        """Like `look_up_distinct`, for code that torch.compile already skips."""
        step, lookup, train = self._begin_lookup(ids)
        return step.look_up_distinct(lookup, train=train)

    def _begin_lookup(self, ids: torch.Tensor) -> tuple[StepRows, Lookup, bool]:
        """Return the step that does the lookup, the lookup, and whether its rows are trained."""
        check_ids(self.name, ids)
        lookup = Lookup(
            self.name, self.dim, ids, padding_idx=self.padding_idx, unknown=self.unknown
        )
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
                "table '%s': %d training lookups without apply_gradients(model); rows are not "
                "trained, and gradients pile up in memory. Call "
                "sparsefleet.nn.apply_gradients(model) next to optimizer.step(); predict under "
                "eval() or torch.no_grad()",
                self.name,
                _MANY_PENDING,
            )
        return step


# torch.compile breaks its graph at these functions because it cannot trace the store that rows come
# from. This is torch.compiler.disable, except that dynamo, which is large, is loaded only on first
# use.
@_disable_dynamo
def _look_up_outside_graph(module: SparseModule, ids: torch.Tensor) -> torch.Tensor:
    return module._look_up_eagerly(ids)


@_disable_dynamo
def _look_up_distinct_outside_graph(module: SparseModule, ids: torch.Tensor) -> DistinctRows:
    return module.look_up_distinct_eagerly(ids)


def check_name(module: str, name: object) -> None:
    """Raise ConfigError if the name is a number, as in a call to `nn.Embedding`."""
    if isinstance(name, int):
        raise ConfigError(
            f"{module}(name, dim): name must be the table's name, a string, got {name}; unlike "
            f"nn.Embedding, it takes no number of rows, because tables grow: "
            f"{module}('ads', 16)"
        )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
