"""Evaluation and prediction, with loss and metrics merged over threads and workers."""

from __future__ import annotations

import functools
import inspect
import os
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsefleet import metrics as known_metrics
from sparsefleet.engine.batch_source import BatchSource
from sparsefleet.engine.batch_tensors import moved
from sparsefleet.engine.training import Training
from sparsefleet.engine.workload import Batch, Outcome
from sparsefleet.errors import ConfigError, ExportError, ShapeError
from sparsefleet.metrics import AUC, LogLoss, Metric, MetricSet
from sparsefleet.train.module_workload import Loss, apply_loss, loss_value
from sparsefleet.train.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from sparsefleet.engine.distributed_model import DistributedModel
    from sparsefleet.fleet.meeting import Meeting
    from sparsefleet.serving.export import ExportManifest

__all__ = [
    "Figures",
    "Scorer",
    "export_together",
    "figures_of",
    "predictions_for",
    "predictions_of",
]


# Format: sum of losses, examples, whether metrics follow; then the state of the metrics.
_HEAD = struct.Struct("<dQB")
_BCE_WITH_LOGITS = functional.binary_cross_entropy_with_logits


Metrics = Mapping[str, Metric] | Sequence[str]
"""Metrics by the name shown in results, or a list of names from `sparsefleet.metrics`."""


class Figures:
    """Sums of loss and metrics. Not thread-safe: each thread has its own; they are merged at the
    end.

    metrics: None if they do not apply to this model; AUC, for example, does not apply to more than
        two classes.
    """

    def __init__(self, metrics: MetricSet | None) -> None:
        self.loss_sum = 0.0
        self.examples = 0
        self.metrics = metrics

    def merge(self, other: Figures) -> None:
        """Add the counts of `other`."""
        self.loss_sum += other.loss_sum
        self.examples += other.examples
        if self.metrics is None or other.metrics is None:
            self.metrics = None
        else:
            self.metrics.merge(other.metrics)

    def state(self) -> bytes:
        """Return the sums as bytes, to be sent to another worker."""
        metrics = b"" if self.metrics is None else self.metrics.state()
        return _HEAD.pack(self.loss_sum, self.examples, self.metrics is not None) + metrics

    @classmethod
    def from_state(cls, state: bytes) -> Figures:
        loss_sum, examples, has_metrics = _HEAD.unpack_from(state)
        figures = cls(MetricSet.from_state(state[_HEAD.size :]) if has_metrics else None)
        figures.loss_sum, figures.examples = loss_sum, examples
        return figures

    def of_all(self, meeting: Meeting) -> Figures:
        """Return the sums over all workers, the same on each. Must be called by all workers."""
        if meeting.is_alone:
            return self
        states = meeting.all_gather(self.state(), patient=True)  # some have more data than others
        merged = Figures.from_state(states[0])  # in the order of ranks
        for state in states[1:]:
            merged.merge(Figures.from_state(state))
        return merged

    def compute(self) -> dict[str, float]:
        """Return "loss", the mean per example, and every metric by name; nan if undefined."""
        loss = self.loss_sum / self.examples if self.examples else float("nan")
        return {"loss": loss, **({} if self.metrics is None else self.metrics.compute())}


class Scorer:
    """Converts outputs to predictions and feeds metrics, depending on the loss and config.

    The default metrics are AUC and log loss; they are omitted unless the model's output is
    probabilities for two classes. Metrics requested explicitly raise an error in that case.
    """

    def __init__(self, loss: Any, metrics: Metrics | None, config: TrainerConfig) -> None:
        self.has_predictions = loss is not None
        self._asked_for = metrics is not None
        chosen: dict[str, Metric] = {"auc": AUC(), "log_loss": LogLoss()}
        if metrics is not None:
            chosen = {name: metric.empty_copy() for name, metric in _as_mapping(metrics).items()}
        self._metrics = MetricSet(chosen)
        self.names = ["loss", *(chosen if self.has_predictions else ())]
        """Names of all figures that may be computed."""
        default = () if self._asked_for else ("log_loss",)  # for two classes it repeats the loss
        self.train_names = [name for name in self.names if name not in default]
        """Names of the figures that are also shown for training data."""
        self._groups = config.groups
        self._predict: Callable[[Any], Any] = config.predictions or predictions_for(loss)
        if loss is None and self._asked_for:
            raise ConfigError(
                "metrics need labels and predictions, but with loss=None the model's output is "
                "the loss: pass a loss, or no metrics"
            )

    def figures(self) -> Figures:
        """Return a `Figures` object that has no batches yet."""
        return Figures(self._metrics.empty_copy() if self.has_predictions else None)

    def predictions(self, output: Any) -> Tensor:
        """Return probabilities for an output, a tensor with one row per example."""
        found = self._predict(output)
        if not isinstance(found, Tensor):
            raise ConfigError(
                f"the model returns a {type(output).__name__}, which is not a prediction: "
                "extract one with TrainerConfig(predictions=lambda output: ...)"
            )
        return found if found.dim() else found.view(1)  # squeeze() of a batch with one example

    def add(self, figures: Figures, scored: Outcome, inputs: Any) -> None:
        """Add one batch; groups are computed from the inputs."""
        figures.loss_sum += scored.loss * scored.size
        figures.examples += scored.size
        if figures.metrics is None:
            return
        groups = None if self._groups is None else self._groups(inputs)
        self._update(figures, scored.output, scored.labels, groups)

    def recent(self, batches: Sequence[Outcome]) -> Figures:
        """Return figures over recent batches; batches without output count only toward the loss.

        This is for display, so metrics that cannot be computed are omitted and training continues.
        """
        figures = self.figures()
        figures.loss_sum = sum(scored.loss * scored.size for scored in batches)
        figures.examples = sum(scored.size for scored in batches)
        kept = [s for s in batches if s.output is not None and isinstance(s.labels, Tensor)]
        if figures.metrics is None or not kept:
            figures.metrics = None
            return figures
        try:
            groups = None
            if self._groups is not None:
                groups = torch.cat([torch.as_tensor(scored.groups) for scored in kept])
            output = torch.cat([s.output if s.output.dim() else s.output.view(1) for s in kept])
            labels = torch.cat([scored.labels for scored in kept])
            figures.metrics.update(self.predictions(output), labels, groups=groups)
        except (ConfigError, ShapeError, RuntimeError):  # torch: shapes that do not match
            figures.metrics = None
        return figures

    def _update(self, figures: Figures, output: Any, labels: Any, groups: Any) -> None:
        assert figures.metrics is not None
        if not self._asked_for and not isinstance(output, Tensor):
            figures.metrics = None
            return
        try:
            figures.metrics.update(self.predictions(output), labels, groups=groups)
        except (ConfigError, ShapeError):
            if self._asked_for:
                raise
            figures.metrics = None


def _as_mapping(metrics: Metrics) -> Mapping[str, Metric]:
    """Return the metrics by name; a name such as "log_loss" stands for `LogLoss()`.

    >>> sorted(_as_mapping(["auc", "log_loss"]))
    ['auc', 'log_loss']
    """
    if isinstance(metrics, Mapping):
        return metrics
    known = {
        re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind
        for kind in (getattr(known_metrics, name) for name in known_metrics.__all__)
        if isinstance(kind, type) and issubclass(kind, Metric) and not inspect.isabstract(kind)
    }
    if isinstance(metrics, str) or not all(isinstance(name, str) for name in metrics):
        raise ConfigError(
            f"metrics must be a list of names or a dict from names to metrics, got {metrics!r}"
        )
    for name in metrics:
        if name not in known:
            raise ConfigError(
                f"no metric is named {name!r}; the names are {', '.join(sorted(known))}. For other "
                "settings or your own metric, pass a dict: metrics={'auc': AUC(...)}"
            )
    return {name: known[name]() for name in metrics}


def predictions_for(loss: Any) -> Callable[[Tensor], Tensor]:
    """Return a function that converts outputs to probabilities, as this loss interprets them.

    A loss may define its own method `predictions`. Outputs of other losses are unchanged.

    >>> predictions_for(nn.BCEWithLogitsLoss())(torch.tensor([0.0]))
    tensor([0.5000])
    >>> predictions_for(functional.cross_entropy)(torch.tensor([[1.0, 1.0]]))
    tensor([[0.5000, 0.5000]])
    >>> predictions_for(nn.MSELoss())(torch.tensor([3.0]))
    tensor([3.])
    """
    while isinstance(loss, functools.partial):
        loss = loss.func
    own = getattr(loss, "predictions", None)
    if callable(own):
        return cast(Callable[[Any], Tensor], own)
    if isinstance(loss, nn.BCEWithLogitsLoss) or loss is _BCE_WITH_LOGITS:
        return torch.sigmoid
    if isinstance(loss, nn.CrossEntropyLoss) or loss is functional.cross_entropy:
        return functools.partial(torch.softmax, dim=1)
    if isinstance(loss, nn.NLLLoss) or loss is functional.nll_loss:
        return torch.exp
    return _unchanged


def _unchanged(output: Tensor) -> Tensor:
    return output


def figures_of(
    training: Training[DistributedModel], scorer: Scorer, source: BatchSource, loss: Loss | None
) -> Figures:
    """Return the loss and metrics over this worker's data."""
    device = training.distributed.device
    parts = [scorer.figures() for _ in range(training.distributed.threads)]

    def score(thread: int, batch: Batch, outcome: Outcome) -> None:
        labels = moved(batch.labels, device)
        output = outcome.output
        value = loss_value(output if loss is None else apply_loss(loss, output, labels))
        scored = Outcome(batch.size, value, _on_cpu(output, device), batch.labels)
        scorer.add(parts[thread], scored, batch.inputs)

    training.infer(source, score)
    for part in parts[1:]:
        parts[0].merge(part)
    return parts[0]


def predictions_of(
    training: Training[DistributedModel], scorer: Scorer, source: BatchSource
) -> Tensor:
    """Return the predictions for all batches, in order: float[N] or float[N, C]."""
    found: dict[int, Tensor] = {}
    device = training.distributed.device

    def keep(thread: int, batch: Batch, outcome: Outcome) -> None:
        del thread
        found[batch.number] = scorer.predictions(_on_cpu(outcome.output, device))

    training.infer(source, keep, in_order=True)
    if not found:
        return torch.empty(0)
    return torch.cat([found[number] for number in sorted(found)])


def export_together(
    distributed: DistributedModel,
    directory: str | os.PathLike[str],
    write: Callable[[], ExportManifest],
) -> ExportManifest | None:
    """Make the first remaining worker call `write` once the updates of all workers are applied.

    Returns the manifest on that worker, and None on the others.

    Must be called by all workers. Raises an error on every worker if writing fails.
    """
    from sparsefleet.serving.export.export_directory import read_manifest

    distributed.settle()
    written: list[ExportManifest] = []

    def write_once(_: list[bytes]) -> bytes:
        written.append(write())
        return b"exported"

    if distributed.meeting.decide(b"", write_once, patient=True) is None:
        raise ExportError(
            f"worker 0 was lost while exporting to {os.fspath(directory)}: export again"
        )
    if written:
        return written[0]
    # The previous process of this worker may have written it.
    return read_manifest(directory) if distributed.role.is_first_worker else None


def _on_cpu(output: Any, device: torch.device | None) -> Any:
    """Return the output moved to the CPU, where metrics are computed."""
    return output if device is None else moved(output, torch.device("cpu"))
