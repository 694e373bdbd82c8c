"""Whether ranks were told the same: asked before they exchange tensors of sizes that follow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sparsefleet.collective.world import World
from sparsefleet.errors import ConfigError

__all__ = ["require_agreement"]

_DIGEST_BYTES = 32


def require_agreement(world: World, facts: Mapping[str, object]) -> None:
    """Raises ConfigError on all ranks if one was told other facts than rank 0. All must call it.

    facts: what it is, in words, to what this rank was told; compared by its text.

    >>> require_agreement(World.join(), {"number of rings": 2})
    """
    digests = [hashlib.sha256(repr(told).encode()).digest() for told in facts.values()]
    gathered = world.all_gather_bytes(b"".join(digests))
    for place, what in enumerate(facts):
        part = slice(place * _DIGEST_BYTES, (place + 1) * _DIGEST_BYTES)
        for rank, theirs in enumerate(gathered):
            if theirs[part] != gathered[0][part]:
                raise ConfigError(
                    f"rank {rank} and rank 0 differ in the {what}, in which all ranks must agree"
                )
