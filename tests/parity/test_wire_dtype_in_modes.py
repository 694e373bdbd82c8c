"""Training with 16-bit numbers on the network, against float32, in each mode."""

from __future__ import annotations

import numpy as np
import pytest
from tests.parity.test_modes_against_local import (
    FEATURES,
    Learner,
    make_batches,
    run_threads,
    trained,
)
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.modes import GeoConfig
from sparsefleet.modes.mode_choice import ModeConfig

STEPS = 40
MODES = ["sync", "half_async", "async", "hybrid", GeoConfig(push_interval_steps=5)]
TOLERANCE = 0.02
"""Distance between the two, of the distance that training covers: each number errs by less than
2^-7 of itself, gradients without a bias."""


def trained_over(dtype: str, mode: str | ModeConfig, steps: int) -> np.ndarray:
    """Return what one worker learns in some steps, as servers hold it."""
    with (
        NativeServers(2, transport="plain") as fleet,
        fleet.connect(name="worker-0", wire_dtype=dtype) as store,
        fleet.connect(name="reader", wire_dtype="float32") as reader,
    ):
        learner = Learner(mode, store, optim.SGD(lr=0.05))
        hand_over = learner.mode.hand_over

        def hand_over_and_flush(gradients: object) -> None:  # so that only the arithmetic is left
            hand_over(gradients)  # type: ignore[arg-type]
            learner.mode.flush()

        learner.mode.hand_over = hand_over_and_flush  # type: ignore[method-assign]
        run_threads([(learner, make_batches(steps))])
        learner.mode.finish()
        assert np.isfinite(learner.net).all()
        return trained(reader)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_each_mode_learns_nearly_the_same_in_16_bits(mode: str | ModeConfig) -> None:
    start = trained_over("float32", mode, 0)
    exact = trained_over("float32", mode, STEPS)
    narrow = trained_over("bf16", mode, STEPS)
    assert (narrow != exact).any()
    for part in (slice(None, -FEATURES), slice(-FEATURES, None)):  # rows, then dense values
        covered = np.linalg.norm((exact - start)[part])
        assert np.linalg.norm((narrow - exact)[part]) < TOLERANCE * covered


def test_a_repeated_sync_training_gives_the_same_bits() -> None:
    np.testing.assert_array_equal(
        trained_over("bf16", "sync", 10), trained_over("bf16", "sync", 10)
    )
