"""Embeddings whose rows are in tables.

A lowered program takes the rows for its run as a `StepRows`. Before the program runs, its
`LookupPlan` lists the ids looked up in each table, so that the caller can fetch all rows in one
request, or prefetch them. A lookup whose ids depend on anything else pulls its own rows.

In shapes, B is the number of sequences, N the number of ids or rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import fx

from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.framework.call_site import ProgramError
from sparsefleet.fluid.framework.sparse_parameter import (
    LocalRows,
    SparseParameter,
    initializer_of,
    optimizer_of,
    pull_from,
)
from sparsefleet.fluid.lowering.body import detached, first_lod
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.nn.lookup import Lookup, check_ids
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.sparse_embedding_bag import BagsOfLengths
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store.arrays import Floats, Keys

if TYPE_CHECKING:
    from sparsefleet.fluid.lowering.lower import _Lowering

__all__ = [
    "Ids",
    "LOOKUPS",
    "LookupPlan",
    "PlannedLookup",
    "TableLowering",
    "ids_module",
    "lookup_of",
    "makers_of",
    "pool_bags",
    "table_seed",
]


def pool_bags(
    rows: torch.Tensor, lod: Lod, pooltype: str, pad_value: float
) -> tuple[torch.Tensor, Lod]:
    """Pool rows [N, ...] by their LoD to [B, ...]; also return the remaining LoD.

    pooltype: SUM, AVERAGE, or SQRT (the sum divided by the square root of the length).
    pad_value: the value for sequences without rows. Raises ValueError if there is no LoD.

    >>> rows, lod = torch.tensor([[1.0], [2.0], [3.0]]), (torch.tensor([0, 2, 3]),)
    >>> pool_bags(rows, lod, "AVERAGE", 0.0)[0]
    tensor([[1.5000],
            [3.0000]])
    """
    if not lod:
        raise ValueError("input X has no LoD; feed a LoDTensor (fluid.create_lod_tensor)")
    lengths = np.diff(lod[-1].cpu().numpy())
    if (lengths == 1).all():  # every kind of pooling returns the row itself
        return rows, lod[:-1]
    on_device = torch.from_numpy(lengths).to(rows.device)
    pooled = BagsOfLengths(on_device)(rows, 0)
    column = on_device.reshape(-1, *[1] * (rows.dim() - 1))
    if pooltype != "SUM":
        divisor = column.clamp(min=1).to(rows.dtype)
        pooled = pooled / (divisor if pooltype == "AVERAGE" else divisor.sqrt())
    if pad_value and not lengths.all():
        pooled = torch.where(column == 0, torch.full_like(pooled, pad_value), pooled)
    return pooled, lod[:-1]


Ids = tuple[torch.Tensor, ...]
"""Ids that a program computes from its feeds alone."""

_PURE = (operator.getitem, detached, first_lod, torch.Tensor.cpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedLookup:
    """An embedding lookup whose ids depend only on the feeds."""

    table: str
    dim: int
    padding: int | None
    flat: bool
    """Whether the ids have shape [..., 1]."""
    ids: str | int
    """The name of the feed that holds the ids, or the index of the ids among the computed ids."""


class LookupPlan:
    """The lookups of a program whose ids are known before it runs.

    computed: takes the same feeds and LoDs as the program, and returns the ids that are not fed
        directly.
    trains: whether the program has a backward pass, so that new ids get rows.
    """

    __slots__ = ("_computed", "_lookups", "trains")

    def __init__(
        self, lookups: Sequence[PlannedLookup], computed: fx.GraphModule | None, *, trains: bool
    ) -> None:
        self._lookups = lookups
        self._computed = computed
        self.trains = trains

    def __len__(self) -> int:
        return len(self._lookups)

    def ids(self, feeds: Sequence[torch.Tensor], lods: Sequence[Lod]) -> Ids:
        """Return the computed ids, given the program's feeds and LoDs in the program's order."""
        if self._computed is None:
            return ()
        with torch.no_grad():
            found: Ids = self._computed(*feeds, *lods)
        return found

    def lookups(self, feeds: Mapping[str, torch.Tensor], ids: Ids) -> list[Lookup]:
        """Return the lookups that a run with these feeds and computed ids will make."""
        return [
            lookup_of(
                planned.table,
                planned.dim,
                ids[planned.ids] if isinstance(planned.ids, int) else feeds[planned.ids],
                planned.padding,
                planned.flat,
            )
            for planned in self._lookups
        ]


def lookup_of(table: str, dim: int, ids: torch.Tensor, padding: int | None, flat: bool) -> Lookup:
    """Return the lookup of these ids, whose shape is [...] or, with `flat`, [..., 1]."""
    ids = ids if ids.dtype is torch.int64 else ids.long()
    if flat:
        ids = ids.reshape(-1)  # most ids have one column, so their rows need no reshaping
    check_ids(table, ids)
    return Lookup(table, dim, ids, padding_idx=padding, unknown="initial")


def makers_of(
    ids: fx.Node, inputs: Collection[fx.Node], changed: Collection[fx.Node]
) -> list[fx.Node] | None:
    """Return the nodes that compute ids from these inputs, or None if ids need other inputs.

    changed: nodes whose values an operator may change in place, so when they are read matters.
    """
    found: set[fx.Node] = set()
    waiting = [ids]
    while waiting:
        node = waiting.pop()
        if node in changed:
            return None
        if node in found or node in inputs:
            continue
        if not (node.target in _PURE or getattr(node.target, "is_pure", False)):
            return None
        found.add(node)
        waiting += node.all_input_nodes
    return [node for node in ids.graph.nodes if node in found]


def ids_module(
    inputs: Sequence[fx.Node], makers: Mapping[fx.Node, Sequence[fx.Node]]
) -> fx.GraphModule:
    """Return a module that computes the ids, which are the keys of `makers`, from the inputs."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for nodes in makers.values():
        for node in nodes:
            if node not in copies:
                copies[node] = graph.node_copy(node, lambda known: copies[known])
    graph.output(tuple(copies[ids] for ids in makers))
    return fx.GraphModule(torch.nn.Module(), graph)


Gradient = tuple[Keys, Floats]

LOOKUPS = ("lookup_table", "lookup_table_v2", "lookup_bag")
"""Operators that read rows by id: for ids [..., 1], for ids [...], and both with pooling."""


class TableLowering:
    """The part of a lowering that deals with tables."""

    def __init__(self, lowering: _Lowering) -> None:
        self._lowering = lowering
        self.rows: fx.Node | None = None
        """The node of the run's `StepRows`, which is an argument in a body."""
        self._gradients: tuple[fx.Node, fx.Node] | None = None  # a backward node and its gradients
        self._tables: dict[str, fx.Node] = {}
        self._ids_on_cpu: dict[fx.Node, fx.Node] = {}
        self._added: list[tuple[Operator, fx.Node]] = []  # lookups, each with the node of its ids
        self._lookups = [
            op for op in lowering.ops if op.type in LOOKUPS and self.holds(op.input("W")[0])
        ]

    def holds(self, name: str) -> bool:
        """Return whether the variable is a parameter in a table."""
        variable = self._lowering.vars.get(name)
        return isinstance(variable, Parameter) and variable.is_table

    def reads(self, op: Operator) -> bool:
        """Return whether the operator is a lookup in a table."""
        return op in self._lookups

    def begin(self) -> None:
        """Add the node that provides the rows, if there are lookups; must precede the operators."""
        lowering = self._lowering
        lookups = self._lookups + self._inner_lookups(lowering.ops)
        if lookups:
            given = lowering.graph.placeholder("rows")
            names = dict.fromkeys(op.input("W")[0] for op in lookups)
            self._tables = {name: lowering.value(name, None) for name in names}
            tables = list(self._tables.values())
            self.rows = lowering.call(
                "step_rows", step_rows, given, tables, [], lowering.has_backward
            )

    def plan(
        self,
        fed: Mapping[fx.Node, str],
        fed_lods: Sequence[fx.Node],
        changed: Collection[fx.Node],
    ) -> tuple[LookupPlan | None, set[fx.Node]]:
        """Find the lookups whose ids depend only on feeds; call this after adding the operators.

        The plan computes these ids, and their nodes become arguments of the graph. The second
        result lists the nodes that the plan replaces. A program without lookups has no plan.

        changed: nodes whose values an operator may change in place.
        """
        rows = self.rows
        if rows is None:
            return None, set()
        inputs = [*fed, *fed_lods]
        makers = {ids: makers_of(ids, inputs, changed) for _, ids in self._added}
        ahead = {ids: nodes for ids, nodes in makers.items() if nodes}
        computed = ids_module(inputs, ahead) if ahead else None
        known = [(op, ids) for op, ids in self._added if makers[ids] is not None]
        places = list(ahead)
        planned = [
            PlannedLookup(
                table=op.input("W")[0],
                dim=self._lowering.vars[op.input("W")[0]].shape[1],
                padding=_padding(op),
                flat=_is_flat(op),
                ids=places.index(ids) if ids in ahead else fed[ids],
            )
            for op, ids in known
        ]
        graph, given_ids = self._lowering.graph, dict[fx.Node, fx.Node]()
        with graph.inserting_before(rows):
            for number, ids in enumerate(places):
                given_ids[ids] = graph.placeholder(f"ids_{number}")
                ids.replace_all_uses_with(given_ids[ids])
        given, tables, _, train = rows.args
        names = list(self._tables)
        pulled = [
            (names.index(lookup.table), (given_ids.get(ids, ids), lookup.padding, lookup.flat))
            for lookup, (_, ids) in zip(planned, known, strict=True)
        ]
        rows.args = (given, tables, pulled, train)
        plan = LookupPlan(planned, computed, trains=self._lowering.has_backward)
        return plan, {node for nodes in ahead.values() for node in nodes}

    def _inner_lookups(self, ops: Sequence[Operator]) -> list[Operator]:
        """Return the lookups in operators' bodies, whose ids are only known when a body runs."""
        found = []
        for op in ops:
            if op.has_sub_block:
                inner = self._lowering.program.blocks[op.attrs["sub_block"]].ops
                found += [x for x in inner if x.type in LOOKUPS and self.holds(x.input("W")[0])]
                found += self._inner_lookups(inner)
        return found

    def _on_cpu(self, ids: fx.Node) -> fx.Node:
        """Return the ids on the CPU, where tables are; all lookups of these ids share one node."""
        if self._lowering.device is None:
            return ids
        if ids not in self._ids_on_cpu:
            self._ids_on_cpu[ids] = self._lowering.call("ids", torch.Tensor.cpu, ids)
        return self._ids_on_cpu[ids]

    def add(self, op: Operator) -> bool:
        """Add the operator if it reads or creates a table; return whether it was added."""
        lowering = self._lowering
        if op in self._lookups:
            table = lowering.value(op.input("W")[0], op)
            ids_name = op.input("Ids")[0]
            ids = self._on_cpu(lowering.value(ids_name, op))
            train = lowering.has_backward and not lowering.stops(lowering.vars[op.input("W")[0]])
            flat = _is_flat(op)
            self._added.append((op, ids))
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
        seed = lowering.program.random_seed or torch.initial_seed()
        create = _creator(op, parameter, table_seed(lowering.program, op, seed))
        lowering.put(made[0], op, lowering.call("make_table", create))
        return True

    def gradient(self, name: str, after: fx.Node, op: Operator) -> fx.Node:
        """Return the node for the gradients to push to a parameter's table once `after` has run."""
        if self._gradients is None or self._gradients[0] is not after:
            node = self._lowering.call("table_gradients", table_gradients, self.rows, after)
            self._gradients = (after, node)
        table = self._lowering.value(name, op)
        return self._lowering.call("gradient_of", gradient_of, self._gradients[1], table)


def step_rows(
    given: StepRows | None,
    tables: Sequence[SparseParameter],
    ids: Sequence[tuple[int, tuple[torch.Tensor, int | None, bool]]],
    train: bool,
) -> StepRows:
    """Return the rows given for a run; if there are none, pull the rows of these ids now."""
    if given is not None:
        return given
    pull = pull_from(tables)
    lookups = [lookup_of(tables[i].name, tables[i].dim, *how) for i, how in ids]
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
    """Return the rows of ids. With `flat`, rows replace the last axis of ids, of size 1."""
    rows = step.look_up(lookup_of(table.name, table.dim, ids, padding, flat), train=train)
    return rows.reshape(*ids.shape[:-1], table.dim) if flat and ids.dim() != 2 else rows


def table_gradients(step: StepRows, after: Any) -> dict[str, Gradient]:
    """Return a dict from table to its distinct keys and their gradients."""
    del after
    return step.gradients()


def gradient_of(gradients: Mapping[str, Gradient], table: SparseParameter) -> Gradient | None:
    """Return the gradient of one table, or None if the loss does not depend on any of its rows."""
    return gradients.get(table.name)


def _is_flat(op: Operator) -> bool:
    """Return whether an operator takes ids of shape [..., 1]."""
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


def table_seed(startup: Program, op: Operator, seed: int) -> int:
    """Return the seed of a table's initializer or, if it has none, one based on the operator's
    position.

    When a program is built again, names may differ, but operators keep their positions.
    """
    own = int(op.attrs.get("seed") or 0)
    return own or (seed + startup.global_block().ops.index(op)) % 2**63


def _creator(op: Operator, parameter: Parameter, seed: int) -> Any:
    initializer = initializer_of(op.type, op.attrs)
    whole = op.attrs.get("values") if op.type == "assign_value" else None
    if initializer is None and whole is None:
        raise ProgramError.at(
            op.site, op.type, f"cannot initialize the table for '{parameter.name}'"
        )
    optimizer = optimizer_of(parameter.table_optimizer)

    def make_table() -> SparseParameter:
        first = initializer or initializer_of("fill_constant", {"value": 0.0})
        assert first is not None
        made = LocalRows(parameter.name, parameter.shape, first, optimizer, seed)
        if whole is not None:
            made.set(torch.tensor(whole, dtype=torch.float32).reshape(parameter.shape).numpy())
        return made

    return make_table
