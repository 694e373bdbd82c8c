"""Each diagnosis rule fires for its own problem, and for nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sparsefleet.monitor.findings import RULES, Scene, Watched, diagnose
from sparsefleet.monitor.reading import Interval, Reading
from sparsefleet.monitor.series import Sample

DEBUGGING = Path(__file__).parents[3] / "docs" / "debugging.md"
ACTIVITY = "sparsefleet_worker_activity_seconds_total"


def process(name: str, seconds: float = 5.0, **numbers: Any) -> Watched:
    """Return a process whose counters grew by this much since the last reading; a dict has values
    by one label.
    """
    role, index = name.split()
    samples = []
    for metric, value in numbers.items():
        for label, number in (value if isinstance(value, dict) else {"": value}).items():
            of = dict([label.split("=")]) if label else {}
            samples.append(Sample(f"sparsefleet_{metric}", tuple(of.items()), float(number)))
    before = Reading([Sample(each.name, each.labels, 0.0) for each in samples], 0.0)
    interval = Interval(before, Reading(samples, seconds))
    return Watched(role=role, index=int(index), interval=interval)


def worker(index: int, steps: float = 100, **activity: float) -> Watched:
    shares = {f"activity={name}": seconds for name, seconds in activity.items()}
    return process(
        f"worker {index}", worker_steps_total=steps, worker_activity_seconds_total=shares
    )


def found(*processes: Watched, **trends: Any) -> list[tuple[str, str]]:
    scene = Scene(processes=processes, **trends)
    return [(finding.rule, finding.subject) for finding in diagnose(scene)]


def test_a_healthy_job_has_no_findings() -> None:
    servers = [
        process(f"server {i}", table_pulled_rows_total={"table=ads": 5000 + i}) for i in (0, 1)
    ]
    workers = [worker(i, data=0.1, compute=4.0, push=0.5) for i in (0, 1)]
    steady = {0: [1.0, 1.2, 0.9, 1.1, 1.0], 1: [30.0, 29.0, 31.0, 30.0, 29.5]}
    assert found(*servers, *workers, staleness=steady, births={"ads": [1.0, 0.5, 0.1]}) == []


def test_a_worker_that_needs_longer_for_its_steps_is_a_straggler() -> None:
    slow = worker(1, steps=50, compute=4.9, data=0.1)
    assert found(worker(0, compute=2.0), slow, worker(2, compute=2.1)) == [
        ("straggler", "worker 1")
    ]


def test_a_server_with_most_of_the_rows_is_a_hot_shard() -> None:
    servers = [
        process("server 0", table_pulled_rows_total={"table=ads": 90_000, "table=users": 5000}),
        process("server 1", table_pulled_rows_total={"table=ads": 10_000, "table=users": 5000}),
    ]
    assert found(*servers) == [("hot_shard", "server 0")]


@pytest.mark.parametrize(("metric", "seconds"), [("append", 0.02), ("sync", 0.2)])
def test_a_log_that_takes_long_to_write_is_a_slow_disk(metric: str, seconds: float) -> None:
    name = f"log_{metric}_seconds"
    slow = process("server 0", **{f"{name}_sum": 100 * seconds, f"{name}_count": 100})
    fast = process("server 1", **{f"{name}_sum": 0.01, f"{name}_count": 100})
    assert found(slow, fast) == [("slow_disk", "server 0")]


def test_a_log_without_space_is_a_full_disk() -> None:
    full = process("server 0", log_disk_full=1.0)
    fine = process("server 1", log_disk_full=0.0)
    assert found(full, fine) == [("full_disk", "server 0")]


def test_long_pauses_for_checkpoints_are_a_slow_disk() -> None:
    paused = process("worker 0", checkpoint_pause_seconds_total=1.0, worker_threads=2)
    assert found(paused) == []
    many = process("worker 0", checkpoint_pause_seconds_total=9.0, worker_threads=2)
    assert found(many) == [("slow_disk", "worker 0")]


def test_a_worker_that_waits_for_data_has_a_slow_reader() -> None:
    assert found(worker(0, data=3.0, compute=1.0)) == [("slow_reader", "worker 0")]


def test_faults_that_read_swapped_memory_are_swapping() -> None:
    swapping = process("server 0", process_major_faults_total=1000, process_swap_bytes=1 << 30)
    mapping = process("server 1", process_major_faults_total=1000)
    assert found(swapping, mapping) == [("swapping", "server 0")]


def test_staleness_that_keeps_rising_is_found() -> None:
    assert found(staleness={0: [3.0, 5.0, 9.0, 12.0, 20.0]}) == [("growing_staleness", "worker 0")]
    assert found(staleness={1: [2.0, 40.0, 38.0]}) == [("growing_staleness", "worker 1")]


@pytest.mark.parametrize(
    "points",
    [
        [2.0, 40.0],  # might be one bad second
        [1.0, 15.0, 15.0],
        [2.0, 40.0, 3.0],
        [10.0, 39.0, 39.0],
        [6.0, 7.0, 8.0, 9.0],
        [0.0, 1.0, 3.0, 7.0],
    ],
    ids=str,
)
def test_short_or_slow_rises_of_staleness_are_no_trend(points: list[float]) -> None:
    assert found(staleness={0: points}) == []


def test_a_table_whose_ids_are_all_new_is_a_dying_feature() -> None:
    births = {"clock": [0.99, 0.97, 1.0], "ads": [1.0, 0.6, 0.2], "new": [1.0, 1.0]}
    assert found(births=births) == [("dying_feature", "table clock")]


def test_rejected_gradients_and_skipped_batches_are_found() -> None:
    server = process("server 0", table_rejected_gradients_total={"table=ads": 3, "table=b": 0})
    skipping = process("worker 0", worker_skipped_steps_total=1)
    assert found(server, skipping) == [
        ("nan_gradients", "table ads"),
        ("nan_gradients", "worker 0"),
    ]


def test_a_process_that_does_not_answer_is_silent() -> None:
    quiet = Watched(role="server", index=0, interval=None, silent_s=4.0)
    stopped = Watched(role="worker", index=1, interval=None, state="suspended")
    just_now = Watched(role="server", index=2, interval=None, silent_s=0.5)
    ended = Watched(role="worker", index=3, interval=None, silent_s=60.0, state="done")
    assert found(quiet, stopped, just_now, ended) == [
        ("silent", "server 0"),
        ("silent", "worker 1"),
    ]


def test_bad_lines_and_failed_saves_are_found() -> None:
    reading = process("worker 0", reader_lines_total=100, reader_bad_lines_total=5)
    saving = process("worker 1", checkpoint_failures_total=1)
    assert found(reading, saving) == [("bad_lines", "worker 0"), ("failed_checkpoint", "worker 1")]


def test_every_rule_is_explained_in_the_guide() -> None:
    explained = set(re.findall(r"^### `(\w+)`", DEBUGGING.read_text("utf-8"), re.MULTILINE))
    assert explained == set(RULES)
