from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.bench import bench_path  # noqa: F401

import ctr_rounds
from ctr_groups import GROUPS, QUICK_SIDES
from ctr_names import OURS, PADDLE, PRODUCTS, TORCH
from ctr_rounds import RoundsConfig, run_rounds
from ctr_start import SideSpec, Sources, StartedSide, fleet
from side_processes import Section


class FakeSide:
    """Runs at a given rate; ends with an error in a given section."""

    num_workers = 2

    def __init__(self, rate: float, fails_at: int | None = None) -> None:
        self.rate = rate
        self.fails_at = fails_at
        self.asked: list[tuple[int, int]] = []
        self.is_closed = False

    def run(self, batch: int, examples: int) -> Section:
        self.asked.append((batch, examples))
        if len(self.asked) == self.fails_at:
            raise RuntimeError("exited with code -9")
        return Section(self.rate, 1e6 / self.rate, 0.0)

    def peak_memory_bytes(self) -> tuple[int, int]:
        return 1 << 20, 0

    def close(self) -> None:
        self.is_closed = True


CONFIG = RoundsConfig(repeats=3, section_s=2.0, warm_examples=4000, batches=(1000, 100))


def rounds_of(
    sides: dict[SideSpec, FakeSide | None], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> dict[str, dict[str, object]]:
    def start(spec: SideSpec, sources: Sources) -> StartedSide:
        if (side := sides[spec]) is None:
            raise RuntimeError("skipped: how to get it")
        return StartedSide(spec=spec, side=side, startup_s=1.0)  # type: ignore[arg-type]

    monkeypatch.setattr(ctr_rounds, "start", start)
    return run_rounds(list(sides), Sources(folder=folder), CONFIG)


def test_side_that_fails_leaves_the_others_their_rounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sides: dict[SideSpec, FakeSide | None] = {
        fleet("sync"): FakeSide(10_000, fails_at=6),
        fleet("sync", PADDLE): None,
        SideSpec(engine=TORCH, workers=2): FakeSide(20_000),
    }
    found = rounds_of(sides, monkeypatch, tmp_path)
    assert "code -9" in str(found["sparsefleet sync 2x2"]["error"])
    assert "how to get it" in str(found["PaddlePaddle sync 2x2"]["error"])
    whole = found["torch DDP 2"]
    assert whole["error"] is None
    assert {batch: len(taken) for batch, taken in whole["sections"].items()} == {  # type: ignore[attr-defined]
        "1000": 3,
        "100": 3,
    }
    assert all(side.is_closed for side in sides.values() if side is not None)


def test_sections_are_whole_steps_of_the_wanted_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain, geo = FakeSide(50_000), FakeSide(50_000)
    rounds_of({fleet("async"): plain, fleet("geo"): geo}, monkeypatch, tmp_path)
    assert plain.asked[-1] == (100, 100_000)
    assert plain.asked[-2] == (1000, 100_000)
    assert geo.asked[-2] == (1000, 600_000)  # six times as long: 300 steps of each worker


def test_quick_run_has_sides_of_every_group_and_no_others() -> None:
    assert QUICK_SIDES.keys() == GROUPS.keys()
    for group, specs in GROUPS.items():
        assert set(QUICK_SIDES[group]) <= {spec.name for spec in specs}
        assert QUICK_SIDES[group]


def test_names_tell_engine_mode_and_processes() -> None:
    specs = {
        "sparsefleet local 2": SideSpec(engine=OURS, threads=2),
        "sparsefleet geo 3x2, files": fleet("geo", servers=3, from_files=True),
        "PaddlePaddle async 2x2": fleet("async", PADDLE),
        "torch DDP 2": SideSpec(engine=TORCH, workers=2),
        "torch local 1": SideSpec(engine=TORCH),
        "products 2x1": SideSpec(engine=PRODUCTS, workers=2),
    }
    assert {name: spec.name for name, spec in specs.items()} == {name: name for name in specs}
