"""A torch module and a loss, as a workload for the engine.

In shapes, B is the number of examples.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sparsefleet.engine.batch_tensors import as_tensors, first_tensor, moved
from sparsefleet.engine.step import Step
from sparsefleet.engine.thread_team import add_note
from sparsefleet.engine.workload import Batch, Outcome
from sparsefleet.errors import ConfigError, NonFiniteLossError
from sparsefleet.train.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from sparsefleet.engine.distributed_model import DistributedModel
    from sparsefleet.nn.lookup import Lookup
    from sparsefleet.nn.step_rows import StepRows

__all__ = [
    "KeptOutputs",
    "Loss",
    "ModuleWorkload",
    "apply_loss",
    "as_batch",
    "loss_value",
    "run_module",
]

Loss = Callable[[Any, Any], Tensor]

_MAX_WINDOW_ELEMENTS = 2**24  # outputs kept for displayed metrics, 64 MiB per thread
_BLOCK_ELEMENTS = 1 << 17
_ONE_EXAMPLE = (
    "the batch has one example, but batch normalization needs at least two in training. If it is "
    "the last batch of the data, drop it with ReaderConfig(drop_last=True) or "
    "DataLoader(drop_last=True), or choose a batch size that leaves a different remainder"
)


class ModuleWorkload:
    """A `Workload` that runs a module forward and its loss backward.

    loss: takes (output, labels), returns a scalar; None if the module's output is the loss.
    """

    def __init__(
        self, distributed: DistributedModel, loss: Loss | None, config: TrainerConfig
    ) -> None:
        self._distributed = distributed
        self._loss = loss
        self._config = config

    def as_batch(self, raw: Any, number: int) -> Batch:
        return as_batch(raw, number, labelled=self._loss is not None)

    def lookups(self, inputs: Any) -> list[Lookup] | None:
        return self._distributed.plans.lookups(inputs)

    def learn(self, rows: StepRows, inputs: Any, *, planned: bool) -> None:
        self._distributed.plans.learn(rows, inputs, planned=planned)

    def runners(self, threads: int) -> list[ModuleRunner]:
        return [
            ModuleRunner(replica, self._loss, self._config, self._distributed.device)
            for replica in self._distributed.replicas(threads)
        ]


class ModuleRunner:
    """A `Runner` that runs batches on one replica of the module."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss | None,
        config: TrainerConfig,
        device: torch.device | None,
    ) -> None:
        self.module = module
        self._loss = loss
        self._config = config
        self._device = device
        self._max_kept = _MAX_WINDOW_ELEMENTS // config.metrics_window_batches
        self._kept = KeptOutputs()

    def train(self, batch: Batch, step: Step) -> Outcome:
        inputs, labels = moved(batch[1:3], self._device)
        try:
            output = run_module(self.module, inputs)
        except ValueError as error:
            if batch.size == 1 and "more than 1 value per channel" in str(error):
                add_note(error, _ONE_EXAMPLE)
            raise
        loss = output if self._loss is None else apply_loss(self._loss, output, labels)
        value = loss_value(loss)
        if math.isfinite(value):
            step.max_norm = self._config.clip_grad_norm
            step.backward(loss)
            return self._outcome(output, batch, value)
        if self._config.non_finite_loss == "raise":
            advice = "Look for a division by 0 or a log of 0, lower the learning rate"
            if batch.size == 0:
                advice = "The batch has no examples: leave empty batches out"
            raise NonFiniteLossError(
                f"the loss is {value} in {step.place}, batch {batch.number}; nothing from this "
                f"batch was applied. {advice}, or skip such batches: "
                'TrainerConfig(non_finite_loss="skip")'
            )
        step.skip()
        return Outcome(batch.size, value)

    def infer(self, batch: Batch) -> Outcome:
        return Outcome(
            batch.size, output=run_module(self.module, moved(batch.inputs, self._device))
        )

    def _outcome(self, output: Any, batch: Batch, loss: float) -> Outcome:
        kept = groups = None
        if self._loss is not None and isinstance(output, Tensor):
            kept = self._kept.keep(output) if output.numel() <= self._max_kept else None
            if kept is not None and self._config.groups is not None:
                groups = self._config.groups(batch.inputs)
        return Outcome(batch.size, loss, kept, batch.labels, groups)


class KeptOutputs:
    """Copies of outputs, packed into memory blocks; a copy never changes. Not thread-safe.

    A small tensor that stays among the activations of its step fragments the heap: the activations
    of later steps no longer fit into the gaps, so more memory is allocated. With a window of 50
    batches, a worker's heap would be several times as large as the memory in use.

    A block is freed along with the last output in it.

    >>> kept = KeptOutputs()
    >>> first, second = (kept.keep(torch.full((2,), value)) for value in (1.0, 2.0))
    >>> first.tolist(), second.tolist()
    ([1.0, 1.0], [2.0, 2.0])
    """

    def __init__(self) -> None:
        self._block = torch.empty(0, device="cpu")
        self._used = 0

    def keep(self, output: Tensor) -> Tensor:
        """Return a copy on the CPU with the same shape and dtype, detached from the graph."""
        if output.layout is not torch.strided:
            return output.detach().cpu()
        end = self._used + output.numel()
        if end > self._block.numel() or output.dtype != self._block.dtype:
            self._used, end = 0, output.numel()
            self._block = torch.empty(max(_BLOCK_ELEMENTS, end), dtype=output.dtype, device="cpu")
        kept = self._block[self._used : end].view(output.shape)
        self._used = end
        return kept.copy_(output.detach())


def as_batch(raw: Any, number: int, *, labelled: bool) -> Batch:
    """Read `raw` as `(inputs, labels)` or, if it has more than two parts, `(*inputs, labels)`.

    If `labelled` is False, all of `raw` is input. NumPy arrays become tensors that share their
    memory.
    """
    try:
        value = as_tensors(raw)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"batch {number}: an array cannot be converted to a tensor: {error} Turn strings into "
            "ids with sparsefleet.data.hash_ids"
        ) from error
    if not labelled:
        return Batch(number, value, None, _num_examples(value, None))
    if not isinstance(value, (tuple, list)) or len(value) < 2:
        raise ConfigError(
            f"batch {number} must be (inputs, labels) or (*inputs, labels), got {describe(value)}; "
            "if the model computes the loss itself, pass loss=None. Name the label column with "
            "Reader(label=...) or, for a Dataset, with dataset.batches(label=...)"
        )
    # One part may have been converted to (values, offsets), which is one argument, not two.
    was_converted = isinstance(value[0], tuple) and not isinstance(raw[0], (tuple, list))
    inputs = value[0] if len(value) == 2 and not was_converted else tuple(value[:-1])
    return Batch(number, inputs, value[-1], _num_examples(inputs, value[-1]))


def as_inputs(raw: Any, number: int, *, labelled: bool) -> Batch:
    """Read a batch whose labels are not needed; a dict or a single array is treated as input.

    >>> as_inputs({"ids": torch.arange(3)}, 1, labelled=True).labels is None
    True
    """
    return as_batch(raw, number, labelled=labelled and isinstance(raw, (tuple, list)))


def apply_loss(loss: Loss, output: Any, labels: Any) -> Tensor:
    """Return the loss; if the loss function raises, add a note with its arguments to the error."""
    try:
        return loss(output, labels)
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        add_note(
            error,
            f"the loss got {describe(output)} as output and {describe(labels)} as labels; "
            f"{_loss_hint(output, labels)}",
        )
        raise


def _loss_hint(output: Any, labels: Any) -> str:
    """Return advice for a loss that does not take these arguments."""
    if isinstance(output, Tensor) and isinstance(labels, Tensor) and output.shape == labels.shape:
        if labels.dtype != output.dtype:
            return (
                "if the loss needs labels of the same type as the output, convert: labels.float()"
            )
        return "check that the loss takes these types and shapes"
    if _are_float_classes(output, labels):
        return (
            "one label per row of scores is the number of a class, which must be int64: convert "
            "with labels.long(), or read the label with Slot(name, 'uint64', ())"
        )
    return (
        "the shapes must match: squeeze(1) turns an output [B, 1] into [B]. For one number per "
        "record, give the slot a shape: Slot(name, 'float', ())"
    )


def _are_float_classes(output: Any, labels: Any) -> bool:
    """Return whether the output has several scores per label, and the labels are floats."""
    return (
        isinstance(output, Tensor)
        and isinstance(labels, Tensor)
        and labels.is_floating_point()
        and output.dim() == labels.dim() + 1
        and output.shape[0] == len(labels)
        and output.shape[1] > 1
    )


def loss_value(loss: Any) -> float:
    """Return the loss as a number. Raises ConfigError if the loss is not a scalar tensor."""
    if not isinstance(loss, Tensor):
        raise ConfigError(f"the loss must be a scalar tensor, got a {type(loss).__name__}")
    if loss.numel() != 1:
        raise ConfigError(
            f"the loss must be a scalar, got a tensor of shape {list(loss.shape)}: "
            "reduce it, for example with .mean()"
        )
    return loss.item()


def describe(value: Any) -> str:
    """Describe a value's type and shape for an error message."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"a tensor of shape {list(value.shape)} and type {dtype}"
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"


def run_module(module: nn.Module, inputs: Any) -> Any:
    """Call the module. A tensor is its only argument, a list or tuple holds all arguments, and a
    dict holds named arguments.
    """
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    if isinstance(inputs, dict):
        try:
            return module(**inputs)
        except TypeError as error:
            _note_names(error, module, inputs)
            raise
    return module(inputs)


def _note_names(error: TypeError, module: nn.Module, inputs: dict[str, Any]) -> None:
    """Add a note to the error if the module's `forward` does not take inputs with these names."""
    signature = inspect.signature(module.forward)
    try:
        signature.bind(**inputs)
    except TypeError:
        add_note(
            error,
            f"the batch has the inputs {', '.join(inputs)}, but {type(module).__name__}.forward "
            f"takes {', '.join(signature.parameters)}; inputs in a dict are passed by name",
        )


def _num_examples(inputs: Any, labels: Any) -> int:
    """Return B, from the labels or, without labels, from the first tensor of the inputs."""
    tensor = labels if isinstance(labels, Tensor) else first_tensor((labels, inputs))
    return tensor.size(0) if tensor is not None and tensor.dim() > 0 else 1
