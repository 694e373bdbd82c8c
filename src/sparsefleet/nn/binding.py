"""From modules to the tables of a store."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.store import Store, TableSpec
from sparsefleet.store.optimizers import Optimizer


def sparse_modules(model: nn.Module) -> list[SparseModule]:
    """The SparseEmbedding and SparseEmbeddingBag modules in ``model``, in its order."""
    return [module for module in model.modules() if isinstance(module, SparseModule)]


def bind(
    model: nn.Module,
    store: Store,
    default_optimizer: Optimizer | None = None,
    *,
    track_dirty: bool = False,
) -> dict[str, TableSpec]:
    """Puts the tables of all sparse modules of ``model`` into ``store``; returns their specs.

    Modules of the same name share a table and must describe it alike. ``default_optimizer``
    (else Adagrad) is for tables whose modules name none. Rows that modules already have in this
    process move to ``store``, with their optimizer state where the optimizer stays the same.
    ``track_dirty`` switches that on for all tables.

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
    """The spec all modules of a table agree on; a module without an optimizer takes any."""
    first_path, first = users[0]
    for path, module in users:  # the first that names an optimizer speaks for all
        if module.own_optimizer is not None:
            first_path, first = path, module
            break
    spec = first.spec(default_optimizer)
    for path, module in users:
        other = module.spec(spec.optimizer)
        if other != spec:
            raise ConfigError(
                f"modules '{first_path}' and '{path}' share table '{spec.name}' but describe it "
                f"differently: {_difference(spec, other)}; make them alike or name two tables"
            )
        if module.unknown != first.unknown:
            raise ConfigError(
                f"modules '{first_path}' and '{path}' share table '{spec.name}' but differ in "
                f"unknown: {first.unknown!r} and {module.unknown!r}; make them alike"
            )
    return spec


def _difference(one: TableSpec, other: TableSpec) -> str:
    """The first field in which two specs differ, with both values."""
    for field in one.__dataclass_fields__:
        mine, theirs = getattr(one, field), getattr(other, field)
        if mine != theirs:
            return f"{field} is {mine!r} and {theirs!r}"
    return "nothing"


def _refuse_rows_trained_apart(users: list[tuple[str, SparseModule]], store: Store) -> None:
    """Two modules with stores of their own have two rows for an id: neither is right."""
    sources: dict[int, str] = {}
    for path, module in users:
        home = module.home
        if home.store is not store and home.holds_rows:
            sources.setdefault(id(home.store or home), path)
    if len(sources) > 1:
        first, second, *_ = sources.values()
        raise ConfigError(
            f"modules '{first}' and '{second}' share table '{users[0][1].name}' but each has "
            "rows of its own already: give them one store= from the start, or bind before use"
        )
