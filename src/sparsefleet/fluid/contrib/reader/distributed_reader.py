"""Batches dealt to the workers of a job."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from sparsefleet.errors import ConfigError

__all__ = ["distributed_batch_reader"]

Batch = TypeVar("Batch")


def distributed_batch_reader(
    batch_reader: Callable[[], Iterable[Batch]],
) -> Callable[[], Iterator[Batch]]:
    """Each worker gets every N-th batch of a reader; an incomplete round at the end is left out.

    Who this is and how many there are, PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM say.
    """
    count = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    own = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    if not 0 <= own < count:
        raise ConfigError(
            f"PADDLE_TRAINER_ID is {own}, wanted less than PADDLE_TRAINERS_NUM {count}"
        )

    def read() -> Iterator[Batch]:
        for index, batch in enumerate(batch_reader()):
            if index % count == own:
                mine = batch
            if index % count == count - 1:
                yield mine

    return read
