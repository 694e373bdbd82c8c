"""Profiles some steps in all processes and writes a trace for Chrome and Perfetto."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparsefleet.engine.clock import StepClock
from sparsefleet.engine.events import EpochEnded, Events, PassBegan, StepDone
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.field_checks import require_int
from sparsefleet.monitor.endpoint_file import write_atomically
from sparsefleet.store import RemoteStore

if TYPE_CHECKING:
    from sparsefleet.engine.bound_model import BoundModel

__all__ = ["ProfileConfig", "Profiler", "as_profile"]

_PARTS = ("save_s", "data_s", "pull_s", "compute_s", "hand_over_s")
_NAMES = {"save_s": "save", "hand_over_s": "push"}
_MAX_REQUESTS = 200_000  # spans that a server keeps (5 MB)
_WORKER = 1000  # process numbers in a trace: servers from 0, workers from here


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileConfig:
    """Which steps of the first epoch to profile, and where to write the trace.

    >>> ProfileConfig(path="trace.json", steps=50).skip_steps
    10
    """

    path: str | os.PathLike[str]
    """The JSON file that the first worker writes after the first epoch."""

    skip_steps: int = 10
    """Steps that each thread takes before profiling starts, since the first steps create rows."""

    steps: int = 30
    """Number of steps to profile in each thread."""

    def __post_init__(self) -> None:
        require_int(self, "skip_steps", 0, 2**31)
        require_int(self, "steps", 1, 100_000)


def as_profile(value: object) -> ProfileConfig | None:
    """Return the config for a setting; a path is converted to a config with default settings."""
    if value is None or isinstance(value, ProfileConfig):
        return value
    if isinstance(value, (str, os.PathLike)):
        return ProfileConfig(path=value)
    raise ConfigError(
        f"TrainerConfig.profile must be a path, a ProfileConfig or None, got {value!r}"
    )


class Profiler:
    """Records the steps of one `fit`. All workers must have one with the same settings.

    The durations of the parts of a step come from the clock of its thread; the trace shows the
    parts back to back, up to the end of the step.
    """

    def __init__(self, config: ProfileConfig, distributed: BoundModel) -> None:
        self._config = config
        self._distributed = distributed
        self._lock = threading.Lock()
        self._clocks: list[StepClock] = []
        self._before: dict[int, dict[str, float]] = {}
        self._events: list[dict[str, Any]] = []
        self._servers: list[dict[str, Any]] = []
        self._asked_servers = False
        self._open_threads = 0
        self._is_done = False

    def attach(self, events: Events) -> None:
        """Subscribe to the steps of the first epoch."""
        events.subscribe(PassBegan, self._begin)
        events.subscribe(StepDone, self._step)
        events.subscribe(EpochEnded, self._end)

    def _begin(self, event: PassBegan) -> None:
        if not self._is_done:
            self._clocks = event.view.clocks
            self._open_threads = len(self._clocks)

    def _step(self, event: StepDone) -> None:
        """Record a step; runs in the thread that took it."""
        if self._is_done:
            return
        place, first = event.place, self._config.skip_steps
        last = first + self._config.steps
        if place.step < first or place.step > last:
            return
        clock = self._clocks[place.thread]
        now = {part: float(getattr(clock, part)) for part in _PARTS}
        before = self._before.get(place.thread)
        self._before[place.thread] = now
        if before is None:  # the step before the first profiled step
            self._ask_servers()
            return
        self._draw(place.thread, place.step, {part: now[part] - before[part] for part in _PARTS})
        if place.step == last:
            with self._lock:
                self._open_threads -= 1
                is_last = self._open_threads == 0
            if is_last:
                self._take_servers()

    def _draw(self, thread: int, step: int, seconds: dict[str, float]) -> None:
        end_us = time.time_ns() / 1e3
        at = end_us - 1e6 * sum(seconds.values())
        process = _WORKER + self._distributed.role.index
        events = []
        whole = {"name": f"step {step}", "ts": at, "dur": end_us - at}
        parts = [whole]
        for part, took in seconds.items():
            name = _NAMES.get(part, part.removesuffix("_s"))
            if took > 0:
                parts.append({"name": name, "ts": at, "dur": 1e6 * took})
            at += 1e6 * took
        events = [{"ph": "X", "cat": "worker", "pid": process, "tid": thread, **p} for p in parts]
        with self._lock:
            self._events += events

    # -- servers ------------------------------------------------------------------------------

    def _ask_servers(self) -> None:
        """Make the servers record their requests; only the first worker does this, once."""
        store = self._distributed.store
        with self._lock:
            asks = self._distributed.role.is_first_worker and not self._asked_servers
            self._asked_servers = True
        if asks and isinstance(store, RemoteStore):
            for server in range(store.num_servers):
                store.command(server, "profile_begin", str(_MAX_REQUESTS).encode())

    def _take_servers(self) -> None:
        store = self._distributed.store
        if not self._distributed.role.is_first_worker or not isinstance(store, RemoteStore):
            return
        for server in range(store.num_servers):
            try:
                spans = json.loads(store.command(server, "profile_take", b""))
            except SparseFleetError:  # restarted in the meantime, so it has recorded nothing
                continue
            for name, thread, begin_ns, duration_ns in spans:
                span = {"name": name, "ts": begin_ns / 1e3, "dur": duration_ns / 1e3}
                place = {"ph": "X", "cat": "server", "pid": server, "tid": thread}
                self._servers.append({**place, **span})

    # -- the end ------------------------------------------------------------------------------

    def _end(self, event: EpochEnded) -> None:
        """Collect the records of all processes in the first worker, which writes the trace."""
        del event
        if self._is_done:
            return
        self._is_done = True
        if self._open_threads and self._asked_servers:  # the epoch had fewer steps than the profile
            self._take_servers()
        mine = json.dumps({"rank": self._distributed.role.index, "events": self._events})
        self._distributed.meeting.decide(mine.encode(), self._write, patient=True)

    def _write(self, given: list[bytes]) -> bytes:
        parts = [json.loads(part) for part in given]
        events = [event for part in parts for event in part["events"]]
        names = {_WORKER + part["rank"]: f"worker {part['rank']}" for part in parts}
        names |= {event["pid"]: f"server {event['pid']}" for event in self._servers}
        process_names = [
            {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
            for pid, name in names.items()
        ]
        process_names += [
            {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": -pid}}
            for pid in names
        ]
        trace = {"traceEvents": [*process_names, *events, *self._servers], "displayTimeUnit": "ms"}
        write_atomically(self._config.path, json.dumps(trace))
        return b""
