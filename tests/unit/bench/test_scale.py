"""The comparison of the fleet model with measurements, and its part of docs/scaling.md."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
from tests.unit.bench import bench_path  # noqa: F401

import scale
import scale_report
from scale_fleet import CTR, GEO_STEPS, WORDS, Measured, Shape, Task
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
        "reference": {
            "examples_per_s": 20_000.0,
            "worker_cpu_s": 0.024,
            "server_cpu_s": 0.001,
            "others": 0.0,
        },
    }


@pytest.fixture
def found() -> dict[str, Any]:
    fleets = {
        "sync 4x2": measured("sync", 4, 2),
        "sync 8x4": measured("sync", 8, 4, others=1.5),
        "sync 2x1": measured("sync", 2, 1, steps=2),
    }
    return {"machine": "a machine", "tasks": {CTR.name: {"fleets": fleets}}}


def side_by_side(used_s: float) -> dict[str, Any]:
    alone = {"examples_per_s": 20_000.0, "worker_cpu_s": 0.018, "server_cpu_s": 0.002}
    return {"worker_cpu_s": used_s, "server_cpu_s": 0.0, "reference": alone}


def test_what_a_mode_adds_is_fitted_to_one_worker_and_one_server(found: dict[str, Any]) -> None:
    costs = load_machine("amd-epyc")
    task = found["tasks"][CTR.name]
    task["local"] = {"worker_cpu_s": 0.020, "server_cpu_s": 0.0}
    fitted = scale.fit_modes(CTR, found, costs)
    assert 0.0 < fitted.mode_step_s["sync"] < 0.006
    assert fitted.mode_server["sync"] > 0.1
    said = scale.predict(
        "sync", scale._job(CTR, found, costs), scale._here(1, 1, costs.cores), fitted
    )
    used_s = CTR.batch * scale._modelled_s(said, costs)
    assert used_s * said.server_share == pytest.approx(0.001, rel=0.05)
    assert used_s * (1 - said.server_share) == pytest.approx(0.024, rel=0.05)


def test_fleets_are_compared_with_the_model_unless_they_took_few_steps(
    found: dict[str, Any],
) -> None:
    costs = load_machine("amd-epyc")
    fleets = found["tasks"][CTR.name]["fleets"]
    fast = fleets["sync 4x1"] = measured("sync", 4, 1)
    fleets["sync 8x1"] = measured("sync", 4, 1, examples_per_s=fast["examples_per_s"] / 2)
    scale._validate(CTR, found, costs)
    compared = found["tasks"][CTR.name]["compared"]
    assert set(compared) == set(fleets) - {"sync 2x1"}  # too few steps are left out
    errors = [1 + compared[name]["error"] for name in ("sync 4x1", "sync 8x1")]
    assert errors[1] == pytest.approx(2 * errors[0])


def test_rounds_of_a_fleet_are_one_measurement_with_their_medians(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter((10.0, 20.0, 12.0, 50.0, 11.0, 30.0))  # 1x1 and the fleet in turns

    def measure(task: Task, *shapes: Shape) -> list[Measured]:
        return [
            Measured(
                mode=shape.mode,
                workers=shape.workers,
                servers=shape.servers,
                examples_per_s=next(rates),
                worker_cpu_s=0.02,
                server_cpu_s=0.01,
                bytes_per_example=100.0,
                others=0.0,
                steps=5,
            )
            for shape in shapes
        ]

    monkeypatch.setattr(scale, "measure", measure)
    found: dict[str, Any] = {"tasks": {}}
    options = argparse.Namespace(
        parts=["fleets"], quick=False, shapes="4x2", again=False, rounds=3, tries=1
    )
    options.results = tmp_path / "scale.json"
    scale._measure_fleets(CTR, ["sync"], found, options)
    one = found["tasks"][CTR.name]["fleets"]["sync 4x2"]
    assert (one["examples_per_s"], one["reference"]["examples_per_s"]) == (30.0, 11.0)
    assert (one["workers"], one["servers"], one["steps"]) == (4, 2, 15)
    assert one["rates"] == [[10.0, 20.0], [12.0, 50.0], [11.0, 30.0]]
    assert scale._load(options.results) == found


def test_crowding_is_what_jobs_side_by_side_cost_each_other(found: dict[str, Any]) -> None:
    task = found["tasks"][CTR.name]
    assert scale._crowding(task) == scale.Crowding()
    for name, used_s in zip(scale.CROWDS, (0.021, 0.024), strict=True):
        task[f"half_async {name}"] = side_by_side(used_s)
    crowding = scale._crowding(task)
    assert crowding.neighbours == pytest.approx(0.05)
    assert crowding.displaced == pytest.approx(0.2)
    cores = scale.CORES_HERE
    slowed = crowding.stretch(busy=cores, cores=cores, tasks=scale.CROWDS["in turns"] // cores)
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
