"""A training step in hybrid mode counts once, although it makes two pushes."""

from __future__ import annotations

from tests.support.mode_workers import ModeWorkers, gradients

from sparsefleet.modes import HybridConfig


def test_a_step_in_hybrid_counts_once() -> None:
    """When counted twice, rows idle for 100 steps were evicted under untouched_steps=150."""
    with ModeWorkers(HybridConfig(max_merge=1)) as job:
        mode = job.modes[0]
        for _ in range(20):
            mode.hand_over(gradients(1.0, {7: 1.0}))
        mode.flush()
        assert job.stores[0].step == 20
