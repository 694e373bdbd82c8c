"""Running a model over data without training it: for evaluation and prediction."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsefleet.train.batch import Batch, moved, run_model
from sparsefleet.train.batch_source import BatchFeed, BatchSource
from sparsefleet.train.scoring import Figures, Scorer
from sparsefleet.train.step_clock import Scored
from sparsefleet.train.thread_team import ThreadTeam, add_note
from sparsefleet.train.trainer_config import TrainerConfig
from sparsefleet.train.training_thread import apply_loss, loss_value

if TYPE_CHECKING:
    from sparsefleet.fleet.distributed_model import DistributedModel

__all__ = ["Inference"]

_log = logging.getLogger("sparsefleet.train")


class Inference:
    """Forward passes over all batches, in all threads, with rows read and none created."""

    def __init__(
        self, distributed: DistributedModel, scorer: Scorer, config: TrainerConfig
    ) -> None:
        self._distributed = distributed
        self._scorer = scorer
        self._config = config

    def figures(self, source: BatchSource, loss: Callable[[Any, Any], Tensor] | None) -> Figures:
        """Loss and metrics over this worker's data."""
        parts = [self._scorer.figures() for _ in range(self._distributed.threads)]

        def score(thread: int, batch: Batch, output: Any) -> None:
            labels = moved(batch.labels, self._distributed.device)
            value = loss_value(output if loss is None else apply_loss(loss, output, labels))
            scored = Scored(self._brought_back(output), batch.labels, None, value, batch.size)
            self._scorer.add(parts[thread], scored, batch.inputs)

        self._run(source, score)
        for part in parts[1:]:
            parts[0].merge(part)
        return parts[0]

    def predictions(self, source: BatchSource) -> Tensor:
        """Predictions of all batches, in their order: float[N] or float[N, C]."""
        found: dict[int, Tensor] = {}

        def keep(thread: int, batch: Batch, output: Any) -> None:
            del thread
            found[batch.number] = self._scorer.predictions(self._brought_back(output))

        self._run(source, keep, in_order=True)
        if not found:
            return torch.empty(0)
        return torch.cat([found[number] for number in sorted(found)])

    def _brought_back(self, output: Any) -> Any:
        """On the CPU, where metrics are counted."""
        return output if self._distributed.device is None else moved(output, torch.device("cpu"))

    def _run(
        self,
        source: BatchSource,
        use: Callable[[int, Batch, Any], None],
        *,
        in_order: bool = False,
    ) -> None:
        feed = source.begin_pass()
        if in_order and getattr(feed.data, "keeps_order", True) is False:
            _log.warning(
                "predictions come in the order of the batches, and this data gives those in any "
                "order: read with threads=1 and without sharding to have that of the files"
            )
        replicas = self._distributed.replicas(self._distributed.threads)

        def run(thread: int) -> None:
            self._run_thread(feed, replicas[thread], lambda batch, out: use(thread, batch, out))

        def stop_the_others(error: BaseException) -> None:
            del error
            feed.stop()

        team = ThreadTeam(
            len(replicas),
            torch_threads=self._config.torch_threads,
            stop_timeout_s=self._config.stop_timeout_s,
        )
        try:
            team.run(run, stop_the_others)
        except BaseException:
            feed.let_go()
            raise

    def _run_thread(
        self, feed: BatchFeed, replica: torch.nn.Module, use: Callable[[Batch, Any], None]
    ) -> None:
        while (batch := feed.take()) is not None:
            try:
                with self._distributed.evaluating(replica, batch=batch.inputs) as model:
                    use(batch, run_model(model, moved(batch.inputs, self._distributed.device)))
            except Exception as error:
                add_note(error, f"raised in batch {batch.number} of the data to be predicted")
                raise
