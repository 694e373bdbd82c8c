"""A model recorded as a graph by torch.export and pruned to what its targets need.

The graph requests rows by calling the operator `sparsefleet::look_up`.
"""

from __future__ import annotations

import operator
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from sparsefleet.errors import ConfigError, ExportError, SparseFleetError
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.serving.export.keyed_rows import CONSTANT_PREFIX, MODEL_PREFIX, Tables
from sparsefleet.serving.export.manifest import (
    InputSchema,
    LookupSchema,
    Schema,
    Shape,
    TargetSchema,
)
from sparsefleet.serving.export.signature import ModelInput, ModelInputs, Targets

__all__ = ["Pruning", "RecordedGraph", "TracedStep", "looking_up", "record", "schema_of"]

# The first version whose graph files load without unpickling and whose modules can omit checks.
_WANTED = (2, 9)


def _require_torch(version: str = torch.__version__) -> None:
    """Raise ConfigError if torch is too old.

    >>> _require_torch("2.4.1+cpu")
    Traceback (most recent call last):
    ...
    sparsefleet.errors.ConfigError: exported models need torch >= 2.9, found 2.4.1+cpu
    """
    major, minor, *_ = version.split(".")
    if (int(major), int(minor)) < _WANTED:
        wanted = ".".join(map(str, _WANTED))
        raise ConfigError(f"exported models need torch >= {wanted}, found {version}")


_require_torch()  # an older torch fails below with a less helpful error


class _RowsAtHand(threading.local):
    """The tables passed to `looking_up` blocks that are open in this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[Tables] = []


_at_hand = _RowsAtHand()


@contextmanager
def looking_up(tables: Tables) -> Iterator[None]:
    """Let graphs run by this thread find rows in these tables within the `with` block."""
    _at_hand.stack.append(tables)
    try:
        yield
    finally:
        _at_hand.stack.pop()


# Rows do not depend on ids alone. Without this tag, lookups of constant ids would be evaluated
# while a graph is being recorded.
@torch.library.custom_op(
    "sparsefleet::look_up", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,)
)
def _look_up(ids: Tensor, table: str, dim: int, padding_id: int | None, unknown: str) -> Tensor:
    """Return the rows of `ids` (int64): float32[*ids.shape, dim]."""
    del dim  # used only to infer the shape before rows exist
    rows = _at_hand.stack[-1].get(table) if _at_hand.stack else None
    if rows is None:
        raise ConfigError(
            f"the graph looks up rows of table '{table}', but none are available; load the model "
            "with sparsefleet.Predictor or load_inference_model"
        )
    found = rows.look_up(
        ids.numpy(), padding_id=padding_id, unknown="initial" if unknown == "initial" else "zeros"
    )
    return torch.from_numpy(np.ascontiguousarray(found))


@_look_up.register_fake
def _shape_of_rows(
    ids: Tensor, table: str, dim: int, padding_id: int | None, unknown: str
) -> Tensor:
    del table, padding_id, unknown
    return ids.new_empty((*ids.shape, dim), dtype=torch.float32)


class TracedStep(StepRows):
    """The lookups made while a graph is being recorded; each becomes an operator of the graph."""

    traced = True

    def __init__(self) -> None:
        super().__init__(_no_pull, train=False)

    def look_up(self, lookup: Lookup, *, train: bool) -> Tensor:
        """Return a placeholder for the rows: float32[*ids.shape, D]."""
        del train
        rows: Tensor = _look_up(
            lookup.ids, lookup.table, lookup.dim, lookup.padding_idx, lookup.unknown
        )
        return rows


def _no_pull(*_: object, **__: object) -> dict[str, np.ndarray]:
    raise AssertionError("rows cannot be pulled while a graph is being recorded")


LOOK_UP = torch.ops.sparsefleet.look_up.default

_MESSAGE_LETTERS = 2000

Varying = Mapping[str, Sequence[int]]


class RecordedGraph:
    """A program with its ordered inputs and targets, each with a placeholder tensor.

    Placeholders have dtypes and shapes. A varying size is a symbol; sizes that must be equal share
    the same symbol.
    """

    def __init__(
        self,
        program: ExportedProgram,
        inputs: list[tuple[ModelInput, list[Tensor]]],
        targets: list[tuple[str, Tensor]],
    ) -> None:
        self.program = program
        self.inputs = inputs
        self.targets = targets

    @property
    def lookups(self) -> list[fx.Node]:
        """Return the `sparsefleet::look_up` nodes in graph order."""
        return [node for node in self.program.graph.nodes if node.target is LOOK_UP]


def record(
    model: nn.Module,
    inputs: ModelInputs,
    targets: Targets,
    *,
    feeds: Sequence[str] | None,
    varying: Varying | None,
) -> RecordedGraph:
    """Record `model`, which must be in evaluation mode, as a graph, and prune the graph.

    feeds: the inputs that callers will pass; a target that needs any other input is an error.
    varying: dimensions of an input whose size may differ between calls; (0,) by default.
    """
    names: list[str] = []

    def run(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with TracedStep():
            found = targets.run(lambda: inputs.call(model, tensors))
        names[:] = found
        return tuple(found.values())

    name, varying = type(model).__name__, varying or {}
    whole = _export(_Whole(model, run), inputs.items, varying, name).module()
    assert isinstance(whole, fx.GraphModule)
    prune = Pruning(whole, inputs.items, names, _saved_names(model))
    prune.check_feeds(feeds)
    used = prune.used_inputs
    program = _export(prune.needed_part(), [item for item, _ in used], varying, name)
    return RecordedGraph(program, used, prune.target_values)


def _saved_names(model: nn.Module) -> dict[str, str]:
    """Map all names of parameters and persistent buffers to their names in checkpoints.

    A tied tensor has several names, of which checkpoints use the first.
    """
    named: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
    first = {id(tensor): name for name, tensor in reversed(named.items())}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, buffer in module._buffers.items():
            if buffer is not None:
                path = f"{prefix}.{name}" if prefix else name
                named[path] = buffer
                if name not in module._non_persistent_buffers_set:
                    first.setdefault(id(buffer), path)
    return {name: first[id(tensor)] for name, tensor in named.items() if id(tensor) in first}


class _Whole(nn.Module):
    """Wraps the whole model in a module that takes and returns flat tensors."""

    def __init__(self, model: nn.Module, run: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model = model
        self._run = run

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._run(tensors)


def _export(
    module: nn.Module, items: Sequence[ModelInput], varying: Varying, name: str
) -> ExportedProgram:
    tensors = tuple(tensor for item in items for tensor in _stand_ins(item))
    shapes = tuple(_dynamic(item, tensor, varying) for item in items for tensor in item.tensors)
    is_star = isinstance(module, _Whole)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings about itself
            return torch.export.export(
                module, tensors, dynamic_shapes=(shapes,) if is_star else shapes, strict=False
            )
    except SparseFleetError:
        raise
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError) as error:
        fixed = _FIXED_SIZE.search(str(error))
        if fixed is not None:
            raise ExportError(_fixed_size(name, items, *map(int, fixed.groups()))) from error
        raise ExportError(
            f"{name} cannot be recorded as a graph. Usual causes are Python code that depends on "
            "tensor values, or an input whose first dimension is not the batch (declare it with "
            f"varying={{'input_name': ()}}). torch.export says: {str(error)[:_MESSAGE_LETTERS]}"
        ) from error


_FIXED_SIZE = re.compile(
    r"marked L\['(?:tensors|args)'\]\[(\d+)\]\.size\(\)\[(\d+)\] as dynamic but your code "
    r"specialized it to be a constant \((\d+)\)"
)


def _fixed_size(
    model: str, items: Sequence[ModelInput], place: int, dimension: int, size: int
) -> str:
    """Return an error that explains that the model turned a varying size into a constant."""
    names = [item.name for item in items for _ in item.tensors]
    name = names[place] if place < len(names) else "an input"
    return (
        f"{model} fixes dimension {dimension} of input '{name}' to {size}, its size in the "
        f"example: len({name}) and int({name}.shape[{dimension}]) are fixed numbers; use "
        f"{name}.shape[{dimension}] instead. If the size never changes, export with "
        f"varying={{'{name}': ()}}"
    )


def _stand_ins(item: ModelInput) -> tuple[Tensor, ...]:
    """Return the tensors to record with. Only their shapes matter.

    Torch treats sizes of 0 and 1 as fixed, and ragged values may happen to have such a size.
    """
    first, *rest = item.tensors
    if item.is_ragged and len(first) < 2:
        return (first.new_zeros(2), *rest)
    return item.tensors


def _dynamic(item: ModelInput, tensor: Tensor, varying: Varying) -> dict[int, Any]:
    dims = varying.get(item.name, (0,))
    return {dim: Dim.DYNAMIC for dim in dims if dim < tensor.dim()}


_SIZE_OF = torch.ops.aten.sym_size.int


class Pruning:
    """Prunes a graph of flat tensors to the parts that its targets need.

    saved: the tensors that checkpoints hold, by name in the model, with their names in checkpoints.
        All other tensors are constants.
    """

    def __init__(
        self,
        whole: fx.GraphModule,
        items: Sequence[ModelInput],
        targets: Sequence[str],
        saved: Mapping[str, str],
    ) -> None:
        self._whole = whole
        self._saved = saved
        nodes = iter([node for node in whole.graph.nodes if node.op == "placeholder"])
        self._inputs = [(item, [next(nodes) for _ in item.tensors]) for item in items]
        self._output = whole.graph.output_node()
        outputs: Any = self._output.args[0]
        self._targets: list[tuple[str, fx.Node]] = list(zip(targets, outputs, strict=True))
        self._ask_needed_inputs_for_sizes()

    @property
    def target_values(self) -> list[tuple[str, Tensor]]:
        """Return the targets with their placeholder tensors."""
        return [(name, node.meta["val"]) for name, node in self._targets]

    @cached_property
    def used_inputs(self) -> list[tuple[ModelInput, list[Tensor]]]:
        """Return the inputs that a target depends on, with their placeholder tensors."""
        needed = _needed_nodes(self._output)
        return [
            (item, [node.meta["val"] for node in nodes])
            for item, nodes in self._inputs
            if needed.intersection(nodes)
        ]

    def check_feeds(self, feeds: Sequence[str] | None) -> None:
        """Check that every target depends on some input, and only on inputs in the feeds."""
        names = [item.name for item, _ in self._inputs]
        fed = names if feeds is None else _fed(names, [feeds] if isinstance(feeds, str) else feeds)
        for target, node in self._targets:
            needed = _needed_nodes(node)
            wanted = [item.name for item, nodes in self._inputs if needed.intersection(nodes)]
            missing = [name for name in wanted if name not in fed]
            if missing:
                raise ConfigError(
                    f"target '{target}' needs inputs that are not among the feeds "
                    f"({', '.join(feeds or ())}): {', '.join(missing)}; feed them, or choose a "
                    "different target"
                )
            if not wanted:
                raise ConfigError(f"target '{target}' depends on no input of the model")

    def needed_part(self) -> fx.GraphModule:
        """Return the module, reduced to the parts that targets need."""
        graph = fx.Graph()
        tensors: dict[str, Any] = {}
        copies: dict[fx.Node, fx.Node] = {}
        used = [item for item, _ in self.used_inputs]
        for item, nodes in self._inputs:
            for node in nodes if item in used else ():
                name = re.sub(r"\W", "_", item.name)
                copies[node] = graph.placeholder(f"input_{len(copies)}_{name}")
        needed = _needed_nodes(self._output)
        for node in self._whole.graph.nodes:
            if node in needed and node not in copies and node is not self._output:
                copies[node] = graph.node_copy(node, copies.__getitem__)
                copies[node].meta = {}  # it would reveal where the model's source code is
                if node.op == "get_attr":
                    path = str(node.target)
                    copies[node].target = name = self._name_of_tensor(path)
                    tensors[name] = operator.attrgetter(path)(self._whole)
        graph.output(tuple(copies[node] for _, node in self._targets))
        return fx.GraphModule(tensors, graph)

    def _name_of_tensor(self, path: str) -> str:
        name = path.removeprefix(MODEL_PREFIX)
        saved = self._saved.get(name)
        return CONSTANT_PREFIX + name if saved is None else MODEL_PREFIX + saved

    def _ask_needed_inputs_for_sizes(self) -> None:
        """Read sizes from inputs that are needed anyway rather than from arbitrary inputs."""
        needed = _needed_nodes(self._output, through_sizes=False)
        owners: dict[str, tuple[fx.Node, int]] = {}
        for _, nodes in self._inputs:
            for node in needed.intersection(nodes):
                for dim, size in enumerate(node.meta["val"].shape):
                    owners.setdefault(str(size), (node, dim))
        for node in self._whole.graph.nodes:
            if _is_size_of_input(node) and node.args[0] not in needed:
                node.args = owners.get(str(node.meta["val"]), node.args)


def _is_size_of_input(node: fx.Node) -> bool:
    asked = node.args[0] if node.target is _SIZE_OF else None
    return isinstance(asked, fx.Node) and asked.op == "placeholder"


def _needed_nodes(root: fx.Node, *, through_sizes: bool = True) -> set[fx.Node]:
    """Return `root` and all nodes it depends on.

    Without `through_sizes`, inputs that are used only for their size are omitted.
    """
    waiting = [root]
    needed = set(waiting)
    while waiting:
        node = waiting.pop()
        if not through_sizes and _is_size_of_input(node):
            continue
        for source in node.all_input_nodes:
            if source not in needed:
                needed.add(source)
                waiting.append(source)
    return needed


def _fed(names: Sequence[str], feeds: Sequence[str]) -> list[str]:
    """Return the inputs that the feeds name, directly or as parts of a nested input."""
    for feed in feeds:
        if not any(feed in (name, name.split(".")[0]) for name in names):
            raise ConfigError(
                f"feed '{feed}' is not an input of the model; its inputs are {', '.join(names)}"
            )
    return [name for name in names if name in feeds or name.split(".")[0] in feeds]


def schema_of(recorded: RecordedGraph) -> Schema:
    """Return the inputs, lookups and outputs of the graph."""
    names = _DimensionNames([value for _, value in recorded.targets])
    inputs = []
    for item, values in recorded.inputs:
        shape = names.shape(values[0], item.name)
        offsets = names.offsets(values[1], item.name) if item.is_ragged else None
        dtype = _dtype(values[0])
        inputs.append(InputSchema(name=item.name, dtype=dtype, shape=shape, offsets=offsets))
    targets = [
        TargetSchema(name=name, dtype=_dtype(value), shape=names.shape(value, name))
        for name, value in recorded.targets
    ]
    arrays = [name for described in inputs for name in described.arrays]
    placeholders = recorded.program.graph_signature.user_inputs
    array_of = dict(zip(map(str, placeholders), arrays, strict=True))
    lookups = [_lookup(node, array_of) for node in recorded.lookups]
    return Schema(inputs=tuple(inputs), targets=tuple(targets), lookups=tuple(lookups))


class _DimensionNames:
    """Names of varying dimensions: "batch" is the first dimension of the first output."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self._names: dict[str, str] = {}
        self._batch_size: int | None = None
        for value in outputs:
            sizes: tuple[Any, ...] = value.shape
            if sizes and not isinstance(sizes[0], int):
                self._names[str(sizes[0])] = "batch"
                self._batch_size = sizes[0].node.hint
                break

    def shape(self, value: Tensor, owner: str) -> Shape:
        """Return the shape, naming each new size after the array where it first occurs."""
        sizes: tuple[Any, ...] = value.shape
        return tuple(
            size
            if isinstance(size, int)
            else self._names.setdefault(str(size), owner if place == 0 else f"{owner}.{place}")
            for place, size in enumerate(sizes)
        )

    def offsets(self, value: Tensor, owner: str) -> Shape:
        """Return the shape of an offsets array.

        Like the example batch's, it has one element per example, or one more.
        """
        size: Any = value.shape[0]
        varies = not isinstance(size, int)
        if varies and self._batch_size is not None:
            more = size.node.hint - self._batch_size
            if more in (0, 1):
                self._names.setdefault(str(size), "batch + 1" if more else "batch")
        return self.shape(value, f"{owner}.offsets")


def _lookup(node: fx.Node, array_of: dict[str, str]) -> LookupSchema:
    ids, table, _, padding_id, unknown = node.args
    assert isinstance(ids, fx.Node)
    return LookupSchema(
        table=str(table),
        ids=array_of.get(ids.name),
        padding_id=padding_id,  # type: ignore[arg-type]
        unknown="initial" if unknown == "initial" else "zeros",
    )


def _dtype(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
