"""Binds the sparse modules of a model to a store, and applies their gradients in plain loops."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.nn.step_rows import Gradient, merge_gradients
from sparsefleet.store import PushResult, Store, TableSpec
from sparsefleet.store.optimizers import Optimizer


def sparse_modules(model: nn.Module) -> list[SparseModule]:
    """Return the SparseEmbedding and SparseEmbeddingBag modules of ``model``, in order."""
    return [module for module in model.modules() if isinstance(module, SparseModule)]


def bind(
    model: nn.Module,
    store: Store,
    default_optimizer: Optimizer | None = None,
    *,
    track_dirty: bool = False,
) -> dict[str, TableSpec]:
    """Move the tables of all sparse modules of ``model`` into ``store`` and return their specs.

    Modules with the same name share a table and must describe it identically.
    ``default_optimizer`` (Adagrad if None) applies to tables whose modules specify none. Rows
    that modules already hold in this process move to ``store``, and keep their optimizer state if
    the optimizer stays the same. ``track_dirty`` enables dirty tracking for all tables.

    >>> from sparsefleet.nn import SparseEmbedding
    >>> from sparsefleet.store import LocalStore
    >>> model = nn.ModuleList([SparseEmbedding("ads", 8), SparseEmbedding("ads", 8)])
    >>> list(bind(model, LocalStore()))
    ['ads']
    """
    tables: dict[str, list[tuple[str, SparseModule]]] = {}
    for path, module in model.named_modules():
        if isinstance(module, SparseModule):
            tables.setdefault(module.name, []).append((path or type(module).__name__, module))
    specs = {table: _common_spec(users, default_optimizer) for table, users in tables.items()}
    if track_dirty:
        specs = {table: replace(spec, track_dirty=True) for table, spec in specs.items()}
    for users in tables.values():
        _refuse_rows_trained_apart(users, store)
    for table, users in tables.items():
        for index, (_, module) in enumerate(users):
            module.carries_rows = index == 0
            module.home.bind(store, specs[table])
    return specs


def _common_spec(
    users: list[tuple[str, SparseModule]], default_optimizer: Optimizer | None
) -> TableSpec:
    """Return the spec that all modules of a table agree on.

    A module without an optimizer accepts the optimizer of any other module.
    """
    first_path, first = users[0]
    for path, module in users:  # the first module with an optimizer decides
        if module.own_optimizer is not None:
            first_path, first = path, module
            break
    spec = first.spec(default_optimizer)
    for path, module in users:
        other = module.spec(spec.optimizer)
        if other != spec:
            raise ConfigError(
                f"modules '{first_path}' and '{path}' share table '{spec.name}' but describe it "
                f"differently: {_difference(spec, other)}; use the same settings or "
                "different table names"
            )
        if module.unknown != first.unknown:
            raise ConfigError(
                f"modules '{first_path}' and '{path}' share table '{spec.name}' but differ in "
                f"`unknown`: {first.unknown!r} and {module.unknown!r}; use the same value"
            )
    return spec


def _difference(one: TableSpec, other: TableSpec) -> str:
    """Describe the first field in which two specs differ, with both values."""
    for field in one.__dataclass_fields__:
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine != theirs:
            return f"{field} is {mine!r} and {theirs!r}"
    return "nothing"


def _refuse_rows_trained_apart(users: list[tuple[str, SparseModule]], store: Store) -> None:
    """Raise an error if two modules of a table have private stores.

    Each would have its own row for the same id.
    """
    sources: dict[int, str] = {}
    for path, module in users:
        home = module.home
        if home.store is not store and home.holds_rows:
            sources.setdefault(id(home.store or home), path)
    if len(sources) > 1:
        first, second, *_ = sources.values()
        raise ConfigError(
            f"modules '{first}' and '{second}' share table '{users[0][1].name}' but each already "
            "has its own rows: give both the same store= from the start, or bind before first use"
        )


def apply_gradients(model: nn.Module) -> PushResult:
    """Push the gradients that backward() left in the sparse modules of ``model``, and clear them.

    This replaces ``optimizer.step()`` for tables in a custom training loop without a fleet, and
    sends one request per server. Lookups from several forward passes accumulate, like parameter
    gradients. Loops with steps (`fleet.step`, `Trainer`) do not need this call.

    >>> import torch
    >>> from sparsefleet.nn import SparseEmbedding
    >>> ads = SparseEmbedding("ads", 4)
    >>> ads(torch.tensor([1, 2, 1])).sum().backward()
    >>> apply_gradients(ads)
    PushResult(applied=2, rejected_non_finite=0, not_admitted=0)
    >>> apply_gradients(ads)
    PushResult(applied=0, rejected_non_finite=0, not_admitted=0)
    """
    stores: dict[int, Store] = {}
    found: dict[int, dict[str, list[Gradient]]] = {}
    for module in sparse_modules(model):
        gradients = module.take_gradients()
        store = module.store
        if not gradients or store is None:
            continue
        stores[id(store)] = store
        parts = found.setdefault(id(store), {})
        for table, gradient in gradients.items():
            parts.setdefault(table, []).append(gradient)
    totals = [0, 0, 0]
    for key, tables in found.items():
        merged = {table: merge_gradients(parts) for table, parts in tables.items()}
        result = stores[key].push_many(merged, unique=True)
        totals = [total + part for total, part in zip(totals, result, strict=True)]
    return PushResult(*totals)


def discard_gradients(model: nn.Module) -> None:
    """Discard the gradients that backward() left in the sparse modules of ``model``.

    This replaces ``optimizer.zero_grad()`` for tables, for a step that should not be applied.
    """
    for module in sparse_modules(model):
        module.take_gradients()
