"""CTR-DNN with its rows in sparsefleet tables, trained by our Trainer.

Letters: B examples, F slots.
"""

from __future__ import annotations

import argparse
import atexit
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ctr_batches import DIM, NUM_COUNTS, NUM_IDS, NUM_SLOTS, WIDTHS, Batch
from ctr_examples import Examples, share_of
from ctr_network import LR
from sparsefleet import optim
from sparsefleet.data import Slot
from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.store import Uniform
from sparsefleet.train import Trainer, TrainerConfig
from sparsefleet.zoo import CtrDnn, Tables

FILLED_AT_ONCE = 50_000
SCORED_AT_ONCE = 2_000
ONE_ID_SLOTS = (
    Slot("dense", "float", (NUM_COUNTS,)),
    *(Slot(f"C{column}", shape=()) for column in range(1, NUM_SLOTS + 1)),
    Slot("label", shape=()),
)
"""The slots of a MultiSlot line; with one id per slot, columns are int64[B]."""
WARM = {"async": AsyncConfig(warmup_steps=0), "geo": GeoConfig(push_interval_steps=100)}
"""Modes as they are after their warm-up, in which a benchmark would otherwise end. GEO's interval
is that of Paddle.
"""


class FleetModel(CtrDnn):
    """The zoo's CTR-DNN; the same network as `PlainModel`, with its rows in a table."""

    def __init__(
        self, row_lr: float = LR, num_counts: int = NUM_COUNTS, num_slots: int = NUM_SLOTS
    ) -> None:
        counts = Numeric(
            "counts", columns=tuple(f"I{column}" for column in range(1, num_counts + 1))
        )
        columns = tuple(f"C{column}" for column in range(1, num_slots + 1))
        super().__init__(
            Features(counts, Categorical("ids", columns=columns, dim=DIM)),
            hidden=WIDTHS[1:-1],
            num_logits=WIDTHS[-1],
            tables=Tables(optimizer=optim.SGD(lr=row_lr), initializer=Uniform(-0.05, 0.05)),
        )

    def forward(self, counts: Tensor, ids: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(counts=counts, ids=ids)


class FleetModelOfSlots(FleetModel):
    """The same for the columns of `ONE_ID_SLOTS`."""

    def forward(self, dense: Tensor, **slots: Tensor) -> Tensor:  # type: ignore[override]
        ids = torch.stack([slots[f"C{column}"] for column in range(1, NUM_SLOTS + 1)], dim=1)
        return super().forward(dense, ids)


def as_slots(batch: Batch) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return columns as `ONE_ID_SLOTS` are read from a file."""
    counts, ids, clicks = batch
    names = [slot.name for slot in ONE_ID_SLOTS[1:-1]]
    return {"dense": counts, **dict(zip(names, ids.T, strict=True))}, clicks


class OursSide:
    """Our Trainer, as the environment says: in this process, or as one worker of a job."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        from_files = bool(options.files)
        is_timed = options.data is None  # otherwise it is scored, at default settings
        self._examples = Examples(options)
        shape = (self._examples.num_counts, self._examples.num_slots)
        kind = FleetModelOfSlots if from_files else FleetModel
        model = kind(options.row_lr or options.lr, *shape)
        self._trainer = Trainer(
            model,
            nn.functional.cross_entropy,
            optim.SGD(lr=options.lr),
            mode=WARM.get(options.mode, options.mode) if is_timed else options.mode,
            threads=options.threads,
            config=TrainerConfig(quiet=True),
        )
        first = self._examples.turn(100, 2)
        self._fit([as_slots(batch) for batch in first] if from_files else first)  # connects
        if options.rank == 0:
            self._fill_table()
        atexit.register(self._trainer.close)

    def run(self, batch: int, num_batches: int) -> int:
        if not self._options.files:
            return self._fit(self._examples.turn(batch, num_batches))
        return self._fit(self._dataset(batch).batches(label="label"))

    def auc(self, path: Path) -> float:
        place = (self._options.rank, self._options.processes)
        parts = (part.split(SCORED_AT_ONCE) for part in share_of(path, *place))
        return self._trainer.evaluate(list(zip(*parts, strict=True)))["auc"]

    def _fit(self, data: Any) -> int:
        return self._trainer.fit(data).examples

    def _dataset(self, batch: int) -> Any:
        # Imported here, so that training from memory does not pay for it.
        from sparsefleet import fluid

        made = fluid.DatasetFactory().create_dataset("QueueDataset")
        made.set_use_var(list(ONE_ID_SLOTS))
        made.set_batch_size(batch)
        made.set_thread(self._options.threads)
        made.set_filelist(self._options.files)
        return made

    def _fill_table(self) -> None:
        """Create all rows: other sides have them from the start, ours would be created on first
        use.
        """
        for begin in range(0, NUM_IDS, FILLED_AT_ONCE):
            keys = np.arange(begin, min(begin + FILLED_AT_ONCE, NUM_IDS))
            self._trainer.distributed.store.pull("ids", keys)
