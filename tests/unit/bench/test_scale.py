"""The comparison of the fleet model with measurements, and its part of docs/scaling.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.bench import bench_path  # noqa: F401

import scale
import scale_report
from scale_fleet import CTR, GEO_STEPS, WORDS
from sparsefleet.planning import load_machine


def measured(mode: str, workers: int, servers: int, **changes: float) -> dict[str, Any]:
    return {
        "mode": mode,
        "workers": workers,
        "servers": servers,
        "examples_per_s": 40_000.0,
        "worker_cpu_s": 0.024,
        "server_cpu_s": 0.002,
        "bytes_per_example": 8000.0,
        "others": 0.1,
        "steps": 100,
        **changes,
    }


@pytest.fixture
def found() -> dict[str, Any]:
    fleets = {
        "sync 1x1": measured("sync", 1, 1),
        "sync 4x2": measured("sync", 4, 2),
        "sync 8x4": measured("sync", 8, 4, others=1.5),
        "sync 2x1": measured("sync", 2, 1, steps=2),
    }
    local = {"worker_cpu_s": 0.020}
    return {"machine": "a machine", "tasks": {CTR.name: {"local": local, "fleets": fleets}}}


def test_what_a_mode_adds_is_fitted_to_one_worker_and_one_server(found: dict[str, Any]) -> None:
    costs = load_machine("amd-epyc")
    scale._validate(CTR, found, costs)
    compared = found["tasks"][CTR.name]["compared"]
    assert compared["sync 1x1"]["cpu_error"] == pytest.approx(0.0, abs=0.02)
    assert set(compared) == {"sync 1x1", "sync 4x2", "sync 8x4"}  # too few steps are left out
    assert 0.0 < found["tasks"][CTR.name]["overheads_s"]["sync"] < 0.006


def test_crowding_is_what_processes_without_servers_cost_each_other(found: dict[str, Any]) -> None:
    task = found["tasks"][CTR.name]
    assert scale._crowding(task) == scale.Crowding()
    for name, used_s in zip(scale.CROWDS, (0.021, 0.024), strict=True):
        task[name] = {"worker_cpu_s": used_s}
    crowding = scale._crowding(task)
    assert crowding.neighbours == pytest.approx(0.05)
    assert crowding.displaced == pytest.approx(0.2)
    at_most = scale.CROWDS["local in turns"]
    slowed = crowding.stretch(tasks=at_most, cores=scale.CORES_HERE)
    assert slowed == pytest.approx(0.024 / 0.020)  # what was measured comes back


def test_tasks_are_described_by_their_own_batches() -> None:
    for task in (CTR, WORDS):
        job = task.job(0.02, 0.05)
        assert 0 < job.keys < job.ids
        assert 0.3 < job.growth < 1.0
        assert job.exchange_steps == GEO_STEPS
        assert job.keys_of(10**9) == task.rows


def test_the_document_gets_the_results_between_its_marks(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scale._validate(CTR, found, load_machine("amd-epyc"))
    points = [[1, 1, 25_000.0, 0.1], [1000, 100, 2.5e7, 0.2]]
    found["predicted"] = {
        CTR.name: {"series": {"sync 25": points}, "nodes": {"sync": {"10": 0.97, "25": 0.93}}}
    }
    page = tmp_path / "scaling.md"
    page.write_text(f"before\n\n{scale_report.BEGIN}\nold\n{scale_report.END}\n\nafter\n")
    monkeypatch.setattr(scale_report, "DOCUMENT", page)
    for _ in range(2):  # it can be repeated
        scale_report.write_document(found)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| sync | 25k | 25.00M |" in text
    assert "| sync | 97% | 93% |" in text
    assert "1 of 2 fleets are not compared" in text
    assert max(map(len, text.splitlines())) <= 120
