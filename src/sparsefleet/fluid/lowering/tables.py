"""Embeddings whose rows are in tables: one pull before the operators, one gradient after."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import fx

from sparsefleet.fluid.call_site import ProgramError
from sparsefleet.fluid.framework import Operator, Parameter
from sparsefleet.fluid.lowering.bag_pooling import pool_bags
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.sparse_parameter import SparseParameter, initializer_of, optimizer_of
from sparsefleet.nn import Lookup, StepRows, pull_rows
from sparsefleet.nn.lookup import check_ids
from sparsefleet.nn.pulled_rows import Pull
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.fluid.lowering.lower import _Lowering

__all__ = ["LOOKUPS", "TableLowering"]

Gradient = tuple[Keys, Floats]

LOOKUPS = ("lookup_table", "lookup_table_v2", "lookup_bag")
"""Operators that read rows by id: ids [..., 1], ids [...], and either with sequences pooled."""


class TableLowering:
    """The part of a lowering that is about tables."""

    def __init__(self, lowering: _Lowering) -> None:
        self._lowering = lowering
        self.rows: fx.Node | None = None
        """Those of the run; of a body, where they are handed to it."""
        self._gradients: tuple[fx.Node, fx.Node] | None = None  # of which backward, and all of it
        self._ids_on_cpu: dict[fx.Node, fx.Node] = {}
        self._lookups = [
            op for op in lowering.ops if op.type in LOOKUPS and self.holds(op.input("W")[0])
        ]

    def holds(self, name: str) -> bool:
        """Whether the variable is a parameter in a table."""
        variable = self._lowering.vars.get(name)
        return isinstance(variable, Parameter) and variable.is_table

    def reads(self, op: Operator) -> bool:
        """Whether the operator is a lookup in a table."""
        return op in self._lookups

    def pull_ahead(self) -> None:
        """One pull for all lookups whose ids are fed."""
        lowering = self._lowering
        lookups = self._lookups + self._inner_lookups(lowering.ops)
        if not lookups:
            return
        fed = [op for op in self._lookups if op.input("Ids")[0] in lowering.values]
        names = dict.fromkeys(op.input("W")[0] for op in lookups)
        tables = [lowering.value(name, None) for name in names]
        ids = [
            (
                list(names).index(op.input("W")[0]),
                (self._on_cpu(lowering.values[op.input("Ids")[0]]), _padding(op), _is_flat(op)),
            )
            for op in fed
        ]
        self.rows = lowering.call("pull_tables", pull_tables, tables, ids, lowering.has_backward)

    def _inner_lookups(self, ops: Sequence[Operator]) -> list[Operator]:
        """Lookups in the bodies of operators; their ids are known when they are run."""
        found = []
        for op in ops:
            if op.has_sub_block:
                inner = self._lowering.program.blocks[op.attrs["sub_block"]].ops
                found += [x for x in inner if x.type in LOOKUPS and self.holds(x.input("W")[0])]
                found += self._inner_lookups(inner)
        return found

    def _on_cpu(self, ids: fx.Node) -> fx.Node:
        """Where tables are: the same node for all lookups of these ids."""
        if self._lowering.device is None:
            return ids
        if ids not in self._ids_on_cpu:
            self._ids_on_cpu[ids] = self._lowering.call("ids", torch.Tensor.cpu, ids)
        return self._ids_on_cpu[ids]

    def add(self, op: Operator) -> bool:
        """Adds the operator, if it reads a table or makes one."""
        lowering = self._lowering
        if op in self._lookups:
            table = lowering.value(op.input("W")[0], op)
            ids_name = op.input("Ids")[0]
            ids = self._on_cpu(lowering.value(ids_name, op))
            train = lowering.has_backward and not lowering.stops(lowering.vars[op.input("W")[0]])
            flat = _is_flat(op)
            node = lowering.call(
                op.type, look_up, self.rows, table, ids, _padding(op), flat=flat, train=train
            )
            if lowering.device is not None:
                node = lowering.call("to_device", torch.Tensor.to, node, lowering.device)
            lod = lowering.lods.get(ids_name)
            if op.type == "lookup_bag":
                pooled = lowering.call("pool_bags", _pooling(op), node, lod or ())
                node = lowering.call("pooled", operator.getitem, pooled, 0)
                lod = lowering.call("pooled_lod", operator.getitem, pooled, 1)
            lowering.put(op.output("Out")[0], op, node, lod)
            return True
        made = [name for name in op.output_arg_names if self.holds(name)]
        if not made or op.input_arg_names:
            return False
        parameter = lowering.vars[made[0]]
        assert isinstance(parameter, Parameter)
        seed = int(op.attrs.get("seed") or lowering.program.random_seed or torch.initial_seed())
        create = _creator(op, parameter, (seed + crc32(parameter.name.encode())) % 2**63)
        lowering.put(made[0], op, lowering.call("make_table", create))
        return True

    def gradient(self, name: str, after: fx.Node, op: Operator) -> fx.Node:
        """What to push to the table of a parameter, once `after` has run."""
        if self._gradients is None or self._gradients[0] is not after:
            node = self._lowering.call("table_gradients", table_gradients, self.rows, after)
            self._gradients = (after, node)
        table = self._lowering.value(name, op)
        return self._lowering.call("gradient_of", gradient_of, self._gradients[1], table)


def pull_tables(
    tables: Sequence[SparseParameter],
    ids: Sequence[tuple[int, tuple[torch.Tensor, int | None, bool]]],
    train: bool,
) -> StepRows:
    """The rows of one run: those of the ids given are pulled now, others when they are needed."""
    sources = {table.name: table.source for table in tables}

    def pull(
        keys: Mapping[str, Keys], /, *, train: bool = True, unknown: str = "zeros"
    ) -> dict[str, Floats]:
        del unknown  # always the first value: in Fluid every row has one
        calls: dict[Pull, dict[str, Keys]] = {}
        for name, part in keys.items():
            calls.setdefault(sources[name], {})[name] = part
        found: dict[str, Floats] = {}
        for source, part_of in calls.items():
            found.update(source(part_of, train=train, unknown="initial"))
        return found

    lookups = [_lookup(tables[index], *how) for index, how in ids]
    return StepRows(pull, train=train, pulled=pull_rows(lookups, pull, train=train))


def look_up(
    step: StepRows,
    table: SparseParameter,
    ids: torch.Tensor,
    padding: int | None,
    *,
    flat: bool,
    train: bool,
) -> torch.Tensor:
    """The rows of ids; with `flat` the ids' last size, 1, gives way to the rows' width."""
    rows = step.look_up(_lookup(table, ids, padding, flat), train=train)
    return rows.reshape(*ids.shape[:-1], table.dim) if flat and ids.dim() != 2 else rows


def table_gradients(step: StepRows, after: Any) -> dict[str, Gradient]:
    """Table -> distinct keys and their gradients."""
    del after
    return step.gradients()


def gradient_of(gradients: Mapping[str, Gradient], table: SparseParameter) -> Gradient | None:
    """That of one table; None if the loss depended on no row."""
    return gradients.get(table.name)


def _lookup(table: SparseParameter, ids: torch.Tensor, padding: int | None, flat: bool) -> Lookup:
    ids = ids if ids.dtype is torch.int64 else ids.long()
    if flat:
        ids = ids.reshape(-1)  # most have one column: their rows then need no other shape
    check_ids(table.name, ids)
    return Lookup(table.name, table.dim, ids, padding_id=padding, unknown="initial")


def _is_flat(op: Operator) -> bool:
    """Whether ids are [..., 1]."""
    return bool(op.attrs.get("flat", op.type == "lookup_table"))


def _padding(op: Operator) -> int | None:
    padding = op.attrs.get("padding_idx", -1)
    return None if padding < 0 else int(padding)


def _pooling(op: Operator) -> Callable[[torch.Tensor, Lod], tuple[torch.Tensor, Lod]]:
    kind, pad_value = op.attrs["pooltype"], op.attrs["pad_value"]

    def pool(rows: torch.Tensor, lod: Lod) -> tuple[torch.Tensor, Lod]:
        try:
            return pool_bags(rows, lod, kind, pad_value)
        except ValueError as error:
            raise ProgramError.at(op.site, "sequence_pool", str(error)) from error

    return pool


def _creator(op: Operator, parameter: Parameter, seed: int) -> Any:
    initializer = initializer_of(op.type, op.attrs)
    whole = op.attrs.get("values") if op.type == "assign_value" else None
    if initializer is None and whole is None:
        raise ProgramError.at(
            op.site, op.type, f"cannot give first values to the table of '{parameter.name}'"
        )
    optimizer = optimizer_of(parameter.table_optimizer)

    def make_table() -> SparseParameter:
        first = initializer or initializer_of("fill_constant", {"value": 0.0})
        assert first is not None
        made = SparseParameter(parameter.name, parameter.shape, first, optimizer, seed)
        if whole is not None:
            made.set(torch.tensor(whole, dtype=torch.float32).reshape(parameter.shape).numpy())
        return made

    return make_table
