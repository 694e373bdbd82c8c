"""The memory of five million rows."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.store import LocalStore, TableSpec


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optim.SGD(), optim.Adagrad(), optim.Adam()])
def test_table_of_five_million_rows_is_at_most_1_3_times_its_payload(
    optimizer: optim.Optimizer,
) -> None:
    rng = np.random.default_rng(1)
    with LocalStore() as store:
        store.define(TableSpec(name="t", dim=10, optimizer=optimizer))
        for _ in range(50):
            store.pull("t", rng.integers(0, 2**64, 100_000, dtype=np.uint64))
        stats = store.stats()[0]
        assert stats["table.t.rows"] == 5_000_000
        assert stats["table.t.payload_bytes"] == 5_000_000 * (
            8 + 40 + 4 * store.info("t").state_dim
        )
        assert stats["table.t.memory_bytes"] <= 1.3 * stats["table.t.payload_bytes"]
