"""Watches a job: polls its processes, keeps a history, diagnoses problems; serves the dashboard."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparsefleet.monitor.endpoint_file import Target
from sparsefleet.monitor.findings import RULES, Finding, Scene, Watched, diagnose
from sparsefleet.monitor.http_server import HttpServer, Request, Response
from sparsefleet.monitor.job_file import JobFile, find_job
from sparsefleet.monitor.job_view import History, job_view, plain, points_of, skews
from sparsefleet.monitor.reading import Answer, Interval, Reading, gathered, read_all
from sparsefleet.monitor.series import Sample, sample

__all__ = ["JobWatch", "dashboard_routes", "serve_dashboard"]

_log = logging.getLogger("sparsefleet.monitor")
_KEEP_S = 10.0  # a finding is shown at least this long, to give people time to read it
_MAX_SHARE = 0.1  # share of a core for polling and diagnosing; a large job is polled less often
_RECENT = 30  # number of intervals that trend rules look back
_MIN_PULLED = 50.0  # minimum rows of a table in an interval; fewer are not conclusive

Key = tuple[str, int]


class JobWatch:
    """Reads the metrics of a job's processes every `interval_s` seconds. Thread-safe.

    directory: where the processes write their addresses and the launcher its job file.
    others: launchers on other nodes, whose gathered metrics are forwarded.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        interval_s: float = 1.0,
        others: Sequence[Target] = (),
    ) -> None:
        self._directory = directory
        self._interval_s = interval_s
        self._others = others
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._readings: dict[Key, Reading] = {}
        self._heard: dict[Key, float] = {}
        self._answers: list[Answer] = []
        self._processes: list[Watched] = []
        self._staleness: dict[int, deque[float]] = {}
        self._births: dict[str, deque[float]] = {}
        self._findings: dict[tuple[str, str], tuple[Finding, float]] = {}
        self._history = History()
        self._points: dict[str, float | None] = {}
        self._view: dict[str, Any] = {}
        self._number = 0

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Start reading regularly, on a separate thread."""
        self._thread = threading.Thread(target=self._run, name="sparsefleet-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading, after one last read of the job file."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(5.0)
        with self._changed:
            self._number += 1
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._ended.is_set():
            begun, used_s = time.monotonic(), time.process_time()
            try:
                self.look()
            except Exception:  # a dashboard must not fail because of one bad reading
                _log.warning("failed to read the metrics of the job", exc_info=True)
            took_s, used_s = time.monotonic() - begun, time.process_time() - used_s
            self._ended.wait(max(self._interval_s - took_s, used_s / _MAX_SHARE, 0.1))

    def look(self) -> None:
        """Read the metrics of all processes once."""
        timeout_s = max(1.0, self._interval_s / 2)
        answers = read_all(self._directory, timeout_s=timeout_s, others=self._others)
        job = JobFile.read(self._directory) or JobFile()
        now = time.monotonic()
        processes = self._watched(job, answers, now)
        points = points_of(processes)
        self._follow_trends(processes)
        births = {name: list(each) for name, each in self._births.items()}
        staleness = {rank: list(each) for rank, each in self._staleness.items()}
        scene = Scene(processes=processes, staleness=staleness, births=births)
        findings = self._kept(diagnose(scene), now)
        view = plain(job_view(job, processes, points, findings))
        with self._changed:
            self._answers = answers
            self._processes = processes
            self._points = points
            self._view = view
            self._history.add(time.time(), points)
            self._number += 1
            self._changed.notify_all()

    def _watched(self, job: JobFile, answers: Sequence[Answer], now: float) -> list[Watched]:
        known = {(each.role, each.index): each for each in job.processes}
        answered = {
            (a.target.role, a.target.index): a for a in answers if a.target.role != "launcher"
        }
        processes = []
        for key in sorted({*known, *answered}, key=lambda each: (each[0] != "server", each)):
            answer = answered.get(key)
            reading = answer.reading if answer else None
            interval = None
            if reading is not None:
                interval = Interval(self._readings.get(key), reading)
                self._readings[key] = reading
                self._heard[key] = now
            state = known[key].state if key in known else "running"
            silent_s = now - self._heard[key] if key in self._heard else None
            processes.append(
                Watched(
                    role=key[0], index=key[1], interval=interval, silent_s=silent_s, state=state
                )
            )
        return processes

    def _follow_trends(self, processes: Sequence[Watched]) -> None:
        created: dict[str, float] = {}
        pulled: dict[str, float] = {}
        for each in processes:
            interval = each.interval
            if interval is None or interval.is_first:
                continue
            count = interval.grown("sparsefleet_worker_staleness_steps_count")
            if each.role == "worker" and count:
                mean = interval.grown("sparsefleet_worker_staleness_steps_sum") / count
                self._staleness.setdefault(each.index, deque(maxlen=_RECENT)).append(mean)
            for sums, name in ((created, "created"), (pulled, "pulled")):
                metric = f"sparsefleet_table_{name}_rows_total"
                for table, grown in interval.grown_by(metric, "table").items():
                    sums[table] = sums.get(table, 0.0) + grown
        for table, rows in pulled.items():
            if rows >= _MIN_PULLED:
                share = created.get(table, 0.0) / rows
                self._births.setdefault(table, deque(maxlen=_RECENT)).append(share)

    def _kept(self, findings: Sequence[Finding], now: float) -> list[Finding]:
        for finding in findings:
            self._findings[finding.rule, finding.subject] = (finding, now)
        self._findings = {
            key: kept for key, kept in self._findings.items() if now - kept[1] <= _KEEP_S
        }
        order = list(RULES)
        found = [finding for finding, _ in self._findings.values()]
        return sorted(found, key=lambda finding: order.index(finding.rule))

    # -- results ------------------------------------------------------------------------------

    def view(self) -> dict[str, Any]:
        """Return the newest view; see `job_view`. Empty before the first reading."""
        with self._changed:
            return self._view

    def full(self) -> dict[str, Any]:
        """Return the view with the curves of the whole job."""
        with self._changed:
            return {**self._view, "history": plain(self._history.curves())}

    def wait(self, seen: int, timeout_s: float) -> int:
        """Wait until there is a view after number `seen`; return the number of the newest view."""
        with self._changed:
            self._changed.wait_for(lambda: self._number > seen or self._ended.is_set(), timeout_s)
            return self._number

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def gathered(self) -> list[Sample]:
        """Return the metrics of all processes as last read, with role and index as labels."""
        with self._changed:
            return list(gathered(self._answers))

    def samples(self) -> Iterator[Sample]:
        """Yield the launcher's own metrics about the job."""
        with self._changed:
            processes, answers = self._processes, self._answers
            findings = [finding for finding, _ in self._findings.values()]
            points = self._points
        job = JobFile.read(self._directory) or JobFile()
        for each in processes:
            up = each.interval is not None and each.state == "running"
            place = {"role": each.role, "index": str(each.index)}
            yield sample("sparsefleet_job_process_up", up, **place)
        for known in job.processes:
            place = {"role": known.role, "index": str(known.index)}
            yield sample("sparsefleet_job_process_starts_total", known.starts, **place)
        for answer in answers:
            place = {"role": answer.target.role, "index": str(answer.target.index)}
            yield sample("sparsefleet_job_scrape_seconds", answer.seconds, **place)
        rate = points.get("examples_per_s")
        if rate is not None:
            yield sample("sparsefleet_job_examples_per_second", rate)
        for table, skew in skews(processes).items():
            yield sample("sparsefleet_job_shard_skew_ratio", skew, table=table)
        for finding in findings:
            yield sample("sparsefleet_job_diagnosis", 1, rule=finding.rule, subject=finding.subject)

    def events(self, keep_alive_s: float = 15.0) -> Iterator[bytes]:
        """Yield server-sent events: first the whole job, then each new view, then the end."""
        seen = self.wait(0, keep_alive_s)
        yield _event("full", self.full())
        while not self.has_ended:
            newest = self.wait(seen, keep_alive_s)
            if newest == seen:
                yield b": still here\n\n"
                continue
            seen = newest
            yield _event("view", self.view())
        with contextlib.suppress(OSError):
            job = JobFile.read(self._directory)
            yield _event("end", {"text": job.ended if job and job.ended else "the job has ended"})


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()


_PAGES = Path(__file__).parent / "pages"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}


def dashboard_routes(watch: JobWatch) -> Mapping[str, Callable[[Request], Response]]:
    """Return the routes for the page."""

    def show_file(request: Request) -> Response:
        name, content_type = _FILES[request.path]
        return Response((_PAGES / name).read_bytes(), content_type)

    def show_job(_: Request) -> Response:
        return Response(json.dumps(watch.full()).encode(), "application/json")

    def show_events(_: Request) -> Response:
        return Response(watch.events(), "text/event-stream")

    routes: dict[str, Callable[[Request], Response]] = dict.fromkeys(_FILES, show_file)
    routes["/job.json"] = show_job
    routes["/events"] = show_events
    return routes


def serve_dashboard(
    place: str, address: str = "127.0.0.1:0", *, ended: threading.Event | None = None
) -> None:
    """Watch a job launched by another process, and serve its page until `ended` is set.

    place: the log directory of the job. Prints the address. Raises ConfigError if there is no job
    that can be watched.
    """
    folder = find_job(place)
    watch = JobWatch(folder)
    token = secrets.token_urlsafe(24)
    server = HttpServer(address, dashboard_routes(watch), token=token)
    watch.start()
    job = JobFile.read(folder)
    script = job.script if job is not None else place
    print(f"dashboard for {script} at http://{server.endpoint}/?token={token}", flush=True)
    try:
        (ended or threading.Event()).wait()
    finally:
        watch.stop()
        server.close()
