"""A model recorded as a graph by torch.export, pruned to what its targets need."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from sparsefleet.errors import ExportError, SparseFleetError
from sparsefleet.export.look_up_op import TracedStep
from sparsefleet.export.model_inputs import ModelInput, ModelInputs
from sparsefleet.export.pruning import Pruning
from sparsefleet.export.targets import Targets

__all__ = ["RecordedGraph", "record"]

LOOK_UP = torch.ops.sparsefleet.look_up.default

_MESSAGE_LETTERS = 2000

Varying = Mapping[str, Sequence[int]]


class RecordedGraph:
    """A program with its inputs, in order, and its targets, each with stand-ins for its tensors.

    Stand-ins have dtypes and shapes; sizes that vary are symbols, equal where sizes must be.
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
        """Nodes of `sparsefleet::look_up`, in the order of the graph."""
        return [node for node in self.program.graph.nodes if node.target is LOOK_UP]


def record(
    model: nn.Module,
    inputs: ModelInputs,
    targets: Targets,
    *,
    feeds: Sequence[str] | None,
    varying: Varying | None,
) -> RecordedGraph:
    """Records `model`, which must be in evaluation, and prunes it.

    feeds: the inputs there will be; a target that needs another is an error.
    varying: dimensions of an input that may have another size in every call; (0,) by default.
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
    prune = Pruning(whole, inputs.items, names)
    prune.check_feeds(feeds)
    used = prune.used_inputs
    program = _export(prune.needed_part(), [item for item, _ in used], varying, name)
    return RecordedGraph(program, used, prune.target_values)


class _Whole(nn.Module):
    """The model as a module of flat tensors."""

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
            warnings.simplefilter("ignore")  # of torch, about itself
            return torch.export.export(
                module, tensors, dynamic_shapes=(shapes,) if is_star else shapes, strict=False
            )
    except SparseFleetError:
        raise
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError) as error:
        raise ExportError(
            f"{name} cannot be recorded as a graph. Usual causes: Python that depends on values "
            "of tensors; an input whose first dimension is not the batch (say so with "
            f"varying={{'its name': ()}}). torch.export says: {str(error)[:_MESSAGE_LETTERS]}"
        ) from error


def _stand_ins(item: ModelInput) -> tuple[Tensor, ...]:
    """Tensors to record with, of which only the shapes count.

    Torch takes sizes of 0 and 1 for fixed ones, which ragged values may have by chance.
    """
    first, *rest = item.tensors
    if item.is_ragged and len(first) < 2:
        return (first.new_zeros(2), *rest)
    return item.tensors


def _dynamic(item: ModelInput, tensor: Tensor, varying: Varying) -> dict[int, Any]:
    dims = varying.get(item.name, (0,))
    return {dim: Dim.DYNAMIC for dim in dims if dim < tensor.dim()}
