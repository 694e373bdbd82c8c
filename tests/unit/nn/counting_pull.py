"""A pull that records its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparsefleet.store import Store
from sparsefleet.store.arrays import Floats, Keys


class CountingPull:
    """Pulls from a store; records each call in ``calls`` (table -> keys) and ``how`` (keywords)."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[dict[str, list[int]]] = []
        self.how: list[dict[str, Any]] = []

    def __call__(self, keys: Mapping[str, Keys], /, **how: Any) -> Mapping[str, Floats]:
        self.calls.append({table: part.tolist() for table, part in keys.items()})
        self.how.append(how)
        return self.store.pull_many(keys, **how)[0]
