"""Faults of a real job are diagnosed in the metrics, on the dashboard and in `sparsefleet top`.

The delays are printed (pytest -s) and saved in build/diagnosis_delays.json.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.cgroup import add_process, control_group, limit_writes, set_limit, swap_file
from tests.support.launch_process import wait_until
from tests.support.monitored_job import LiveTop, MonitoredJob

pytestmark = pytest.mark.job

DELAYS = Path(__file__).parents[2] / "build" / "diagnosis_delays.json"


@contextlib.contextmanager
def watched(directory: Path, *words: str, durability: str = "process") -> Iterator[Watcher]:
    job = MonitoredJob(directory, *words, durability=durability)
    top = None
    try:
        top = LiveTop(directory)
        wait_until(lambda: top.shows("examples/s"), "top shows the job")
        yield Watcher(job, top)
    finally:
        if top is not None:
            top.close()
        job.launcher.close()


class Watcher:
    """A job and everything that diagnoses it."""

    def __init__(self, job: MonitoredJob, top: LiveTop) -> None:
        self.job = job
        self._top = top

    def expect(self, rules: dict[str, str], inject: Callable[[], None]) -> None:
        """Injects a fault; then each rule must be found for its subject, everywhere.

        A subject may be the beginning of a name: "worker" is any worker.
        """
        before = {rule for rule, _ in self.job.diagnoses()}
        assert not before & set(rules), f"found before the fault: {before}"
        begun = time.monotonic()
        inject()
        places = {"metric": self._in_metrics, "dashboard": self._on_page, "top": self._in_top}
        delays: dict[str, dict[str, float]] = {rule: {} for rule in rules}

        def all_found() -> bool:
            for place, finds in places.items():
                for rule, subject in rules.items():
                    if place not in delays[rule] and finds(rule, subject):
                        delays[rule][place] = round(time.monotonic() - begun, 2)
            return all(len(found) == len(places) for found in delays.values())

        try:
            wait_until(all_found, f"{rules} named everywhere")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; so far: {delays}") from None
        print(f"seconds until named: {delays}")
        known = json.loads(DELAYS.read_text()) if DELAYS.exists() else {}
        DELAYS.parent.mkdir(exist_ok=True)
        DELAYS.write_text(json.dumps(known | delays, indent=1) + "\n")

    def _in_metrics(self, rule: str, subject: str) -> bool:
        return any(
            found == rule and name.startswith(subject) for found, name in self.job.diagnoses()
        )

    def _finding(self, rule: str, subject: str) -> dict[str, str] | None:
        for each in self.job.view()["findings"]:
            if each["rule"] == rule and each["subject"].startswith(subject):
                assert each["advice"]
                return dict(each)
        return None

    def _on_page(self, rule: str, subject: str) -> bool:
        return self._finding(rule, subject) is not None

    def _in_top(self, rule: str, subject: str) -> bool:
        found = self._finding(rule, subject)
        # Its numbers change with every interval, its advice does not.
        return (
            found is not None
            and subject.split()[-1] in found["text"]
            and self._top.shows(" ".join(found["advice"].split()[:8]))
        )


def test_a_straggler_a_slow_reader_nan_new_ids_and_a_hot_shard_are_named(tmp_path: Path) -> None:
    with watched(tmp_path, "slow-worker", "nan", "new-ids", "hot-shard") as watcher:
        rules = {
            "straggler": "worker 1",
            "slow_reader": "worker 1",
            "nan_gradients": "worker 0",
            "dying_feature": "table clock",
            "hot_shard": "server 0",
        }
        watcher.expect(rules, (tmp_path / "fault").touch)


def test_staleness_that_grows_is_named(tmp_path: Path) -> None:
    with watched(tmp_path, "run-ahead") as watcher:
        pids = [watcher.job.pid("server 0"), watcher.job.pid("server 1")]
        ended = threading.Event()

        def pulse() -> None:
            """Let the servers work a fraction of the time, as on an overloaded machine."""
            while not ended.is_set():
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                ended.wait(0.3)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                ended.wait(0.005)

        pulses = threading.Thread(target=pulse)
        try:
            watcher.expect({"growing_staleness": "worker"}, pulses.start)
        finally:
            ended.set()
            if pulses.is_alive():
                pulses.join(60)


def test_a_checkpoint_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with watched(tmp_path) as watcher:
        directory = tmp_path / "checkpoints"

        def take_away() -> None:
            directory.rename(tmp_path / "moved")
            directory.touch()  # root may write anywhere but into a file

        watcher.expect({"failed_checkpoint": "worker 0"}, take_away)


def test_a_slow_disk_is_named(tmp_path: Path) -> None:
    with control_group("blkio") as group, watched(tmp_path, durability="disk") as watcher:
        limit_writes(group, tmp_path, per_second=5)

        def slow_down() -> None:
            add_process(group, watcher.job.pid("server 1"))

        watcher.expect({"slow_disk": "server 1"}, slow_down)


def test_a_server_that_swaps_is_named(tmp_path: Path) -> None:
    with (
        swap_file(tmp_path, 512 << 20),
        control_group("memory") as group,
        watched(tmp_path, "wide-table") as watcher,
    ):
        set_limit(group, "memory.limit_in_bytes", str(24 << 20))
        set_limit(group, "memory.swappiness", "100")

        def take_memory() -> None:
            add_process(group, watcher.job.pid("server 1"))  # for future allocations

        watcher.expect({"swapping": "server 1"}, take_memory)
