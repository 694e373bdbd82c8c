"""The number that an order follows from."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from sparsefleet.data.exchange import Workers
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError


def checked_seed(seed: int | None) -> int:
    """The seed, or one that is drawn.

    >>> checked_seed(7)
    7
    """
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise ConfigError(f"seed must be an int >= 0 or None, got {seed!r}")
    return seed


def agree_on_seed(workers: Workers, seed: int, slots: Sequence[Slot], *, was_given: bool) -> int:
    """The first worker's seed. Raises where seeds that were given, or slots, differ."""
    mine = {
        "drawn": seed,
        "seed": seed if was_given else None,
        "slots": [[slot.name, slot.dtype, slot.shape] for slot in slots],
    }
    told = [json.loads(part) for part in workers.all_gather(json.dumps(mine).encode())]
    for rank, theirs in enumerate(told):
        for what in ("seed", "slots"):
            if theirs[what] != told[0][what]:
                raise ConfigError(
                    f"global_shuffle: {what} of worker {rank} is {theirs[what]}, of worker 0 "
                    f"{told[0][what]}: all must be equal"
                )
    return int(told[0]["drawn"])
