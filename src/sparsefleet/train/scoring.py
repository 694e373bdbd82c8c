"""Loss and metrics over batches, summed by thread and merged over threads and workers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.metrics import AUC, LogLoss, Metric, MetricSet
from sparsefleet.train.predictions import predictions_for
from sparsefleet.train.step_clock import Scored
from sparsefleet.train.trainer_config import TrainerConfig

if TYPE_CHECKING:
    from sparsefleet.fleet.meeting import Meeting

__all__ = ["Figures", "Scorer"]

# Format: sum of losses, examples, whether metrics follow; then the state of the metrics.
_HEAD = struct.Struct("<dQB")


class Figures:
    """Sums of loss and metrics. Not thread-safe: one a thread, merged at the end.

    metrics: None where they do not apply to this model, as AUC to more than two classes.
    """

    def __init__(self, metrics: MetricSet | None) -> None:
        self.loss_sum = 0.0
        self.examples = 0
        self.metrics = metrics

    def merge(self, other: Figures) -> None:
        """Adds what `other` has seen."""
        self.loss_sum += other.loss_sum
        self.examples += other.examples
        if self.metrics is None or other.metrics is None:
            self.metrics = None
        else:
            self.metrics.merge(other.metrics)

    def state(self) -> bytes:
        """All of it, for another worker."""
        metrics = b"" if self.metrics is None else self.metrics.state()
        return _HEAD.pack(self.loss_sum, self.examples, self.metrics is not None) + metrics

    @classmethod
    def from_state(cls, state: bytes) -> Figures:
        loss_sum, examples, has_metrics = _HEAD.unpack_from(state)
        figures = cls(MetricSet.from_state(state[_HEAD.size :]) if has_metrics else None)
        figures.loss_sum, figures.examples = loss_sum, examples
        return figures

    def of_all(self, meeting: Meeting) -> Figures:
        """Those of all workers, the same bits on every one. All call it."""
        if meeting.is_alone:
            return self
        states = meeting.all_gather(self.state())
        merged = Figures.from_state(states[0])  # in the order of ranks
        for state in states[1:]:
            merged.merge(Figures.from_state(state))
        return merged

    def compute(self) -> dict[str, float]:
        """ "loss", the mean of an example, and every metric by name; nan where undefined."""
        loss = self.loss_sum / self.examples if self.examples else float("nan")
        return {"loss": loss, **({} if self.metrics is None else self.metrics.compute())}


class Scorer:
    """Turns outputs into predictions and feeds metrics; how, follows from loss and config.

    Without `metrics` they are AUC and log loss, and are left out where the model's output is not
    probabilities of two classes; metrics that were asked for raise there.
    """

    def __init__(
        self, loss: Any, metrics: Mapping[str, Metric] | None, config: TrainerConfig
    ) -> None:
        self.has_predictions = loss is not None
        self._asked_for = metrics is not None
        self._metrics = MetricSet(
            {name: metric.empty_copy() for name, metric in metrics.items()}
            if metrics is not None
            else {"auc": AUC(), "log_loss": LogLoss()}
        )
        self._groups = config.groups
        self._predict: Callable[[Any], Any] = config.predictions or predictions_for(loss)
        if loss is None and self._asked_for:
            raise ConfigError(
                "metrics need labels and predictions, and with loss=None the model's output is "
                "the loss: give a loss, or no metrics"
            )

    def figures(self) -> Figures:
        """Sums of nothing yet."""
        return Figures(self._metrics.empty_copy() if self.has_predictions else None)

    def predictions(self, output: Any) -> Tensor:
        """Probabilities for an output, a tensor with an example a row."""
        found = self._predict(output)
        if not isinstance(found, Tensor):
            raise ConfigError(
                f"the model gives a {type(output).__name__}, of which no prediction can be taken: "
                "say how, with TrainerConfig(predictions=lambda output: ...)"
            )
        return found if found.dim() else found.view(1)  # squeeze() of a batch of one example

    def add(self, figures: Figures, scored: Scored, inputs: Any) -> None:
        """Counts one batch; `scored.groups` are taken from the inputs."""
        figures.loss_sum += scored.loss * scored.size
        figures.examples += scored.size
        if figures.metrics is None:
            return
        groups = None if self._groups is None else self._groups(inputs)
        self._update(figures, scored.output, scored.labels, groups)

    def recent(self, batches: Sequence[Scored]) -> Figures:
        """Figures over batches of the recent past; those without output count for the loss.

        For show: where metrics cannot be had they are missing, and training goes on.
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
        except (ConfigError, ShapeError, RuntimeError):  # torch: shapes that do not go together
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
