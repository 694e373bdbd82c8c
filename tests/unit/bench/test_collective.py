from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.bench import bench_path  # noqa: F401

import collective
from collective import Measured, Plan, measure, notes_of, ratios_of, sides_of, tables_of
from collective_nodes import Network, Section
from collective_sides import SIDES

PLAN = Plan(sides=tuple(SIDES), models=("mnist",), delays_ms=(0, 5), repeats=3, section_s=0.1)


class FakeNetwork:
    """Remembers its delay."""

    why_not = None
    seconds = 0.0

    def delay(self, seconds: float) -> None:
        self.seconds = seconds


class FakeRanks:
    """Two ranks take the delay once per step, LocalSGD a quarter of it; four ranks fail."""

    def __init__(self, size: int, network: FakeNetwork, _log: Path) -> None:
        self.size = size
        self.network = network
        self.asked: list[int] = []

    def wait_ready(self) -> None:
        return

    def run(self, side: str, _model: str, steps: int) -> Section:
        if self.size == 4:
            raise RuntimeError("exited with code -9")
        self.asked.append(steps)
        part = 0.25 if side == "local-4" else 1.0
        return Section(1.0 + 1e3 * part * self.network.seconds, 10.0, 800.0 * part, 800.0 * part)

    def close(self, *, kill: bool = False) -> None:
        assert kill == (self.size == 4)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measured:
    monkeypatch.setattr(collective, "Ranks", FakeRanks)
    network: Network = FakeNetwork()  # type: ignore[assignment]
    return measure(PLAN, network, tmp_path)


def test_ranks_that_fail_leave_the_others_their_rounds(measured: Measured) -> None:
    assert list(measured.errors) == [4]
    assert {len(taken) for taken in measured.sections.values()} == {PLAN.repeats}
    assert {SIDES[side].size for _, _, side in measured.sections} == {2}


def test_figures_tell_times_bytes_ratios_and_failures(measured: Measured) -> None:
    (table,) = tables_of(PLAN, measured)
    rows = {row[0]: row[1:] for row in table["rows"]}
    assert rows["LocalSGD, 4"] == ["1.00 (1.00 .. 1.00)", "2.25 (2.25 .. 2.25)", "200", "200", "10"]
    assert "code -9" in rows["hierarchical, 2x2"][0]
    assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    sides = sides_of(PLAN, measured)
    assert sides["torch DDP, 5 ms"]["rate"] == pytest.approx([1e3 / 6] * 3)
    assert "code -9" in sides["sparsefleet fused, 2x2, 5 ms"]["error"]
    ratios = ratios_of(PLAN, measured)
    assert ratios["mnist, 5 ms: local-4 over fused"] == pytest.approx(6 / 2.25)
    assert "mnist, 0 ms: fused-4 over ddp-4" not in ratios
    assert notes_of(ratios, None) == [
        "MLP for MNIST, fused (default) over torch DDP: 1.00x at 0 ms, 1.00x at 5 ms "
        "(>= 0.95x: met)",
        "MLP for MNIST, LocalSGD, 4 over fused (default): 2.67x at 5 ms (>= 2x: met)",
    ]
