"""A snapshot of a job for dashboards, as plain JSON values."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sparsefleet.monitor.findings import Finding, Watched, find_bottleneck
from sparsefleet.monitor.job_file import JobFile
from sparsefleet.monitor.reading import Interval, quantile

__all__ = ["History", "job_view", "plain", "points_of", "skews"]

_ACTIVITY = "sparsefleet_worker_activity_seconds_total"
_REQUESTS = "sparsefleet_server_request_seconds"
_WAITS = {
    "data": "data",
    "pull": "rows",
    "push": "its gradients to be applied",
    "wait": "other threads or workers",
}
_WAITING = 0.5  # share of the time below which a worker counts as computing
_MAX_POINTS = 720

View = dict[str, Any]


class History:
    """Curves over the whole duration of a job; when they are full, every other point is dropped.

    >>> history = History(4)
    >>> for second in range(6):
    ...     history.add(second, {"loss": second})
    >>> history.curves()
    {'time': [0, 2, 4], 'loss': [0, 2, 4]}
    """

    def __init__(self, max_points: int = _MAX_POINTS) -> None:
        self._max_points = max_points
        self._every = 1
        self._seen = 0
        self._times: list[float] = []
        self._curves: dict[str, list[float | None]] = {}

    def add(self, moment: float, points: Mapping[str, float | None]) -> None:
        """Add a point to each curve; a curve without a value gets a gap."""
        keeps = self._seen % self._every == 0
        self._seen += 1
        if not keeps:
            return
        for name in {*points, *self._curves}:
            curve = self._curves.setdefault(name, [None] * len(self._times))
            curve.append(points.get(name))
        self._times.append(moment)
        if len(self._times) > self._max_points:
            self._every *= 2
            self._times = self._times[::2]
            self._curves = {name: curve[::2] for name, curve in self._curves.items()}

    def curves(self) -> dict[str, list[Any]]:
        """Return "time" and the curves."""
        return {"time": list(self._times), **{k: list(v) for k, v in self._curves.items()}}


def points_of(processes: Sequence[Watched]) -> dict[str, float | None]:
    """Return a point for each curve, computed from the last interval."""
    workers = _answering(processes, "worker")
    servers = _answering(processes, "server")
    telling = [each for each in workers if "sparsefleet_worker_loss_total" in each.after]
    examples = sum(each.grown("sparsefleet_worker_examples_total") for each in telling)
    loss = sum(each.grown("sparsefleet_worker_loss_total") for each in telling)
    points: dict[str, float | None] = {
        "examples_per_s": sum(each.rate("sparsefleet_worker_examples_total") for each in workers),
        "loss": loss / examples if examples else None,
        "auc": _mean(
            [
                each.after.get("sparsefleet_worker_metric", math.nan, metric="auc")
                for each in workers
            ]
        ),
        "validation_auc": _mean(
            [
                each.after.get("sparsefleet_validation_metric", math.nan, metric="auc")
                for each in workers
            ]
        ),
        "staleness": _mean([_staleness(each) for each in workers]),
        "queue": sum(each.after.get("sparsefleet_worker_queue_depth") for each in workers),
        "rows": sum(each.after.sum("sparsefleet_table_rows") for each in [*servers, *workers]),
    }
    for kind, types in (("pull", ("pull",)), ("push", ("push", "push_round"))):
        merged: dict[float, float] = {}
        for each in servers:
            for name in types:
                for bound, count in each.buckets(_REQUESTS, type=name).items():
                    merged[bound] = merged.get(bound, 0.0) + count
        points[f"{kind}_p50_s"] = quantile(merged, 0.5)
        points[f"{kind}_p99_s"] = quantile(merged, 0.99)
    return points


def skews(processes: Sequence[Watched]) -> dict[str, float]:
    """Return, by table, the rows pulled from the busiest server divided by the mean over all."""
    rows: dict[str, list[float]] = {}
    for each in _answering(processes, "server"):
        for table, grown in each.grown_by("sparsefleet_table_pulled_rows_total", "table").items():
            rows.setdefault(table, []).append(grown)
    return {
        table: max(counts) * len(counts) / sum(counts)
        for table, counts in rows.items()
        if len(counts) > 1 and sum(counts) > 0
    }


def job_view(
    job: JobFile,
    processes: Sequence[Watched],
    points: Mapping[str, float | None],
    findings: Sequence[Finding],
) -> View:
    """Return everything that a page or terminal shows, except the curves."""
    silent = [
        each.name
        for each in processes
        if each.role == "server" and (_is_silent(each) or each.state == "suspended")
    ]
    return {
        "time": time.time(),
        "job": {"script": job.script, "begun": job.begun, "ended": job.ended},
        "totals": dict(points),
        "epoch": _epoch(processes),
        "bottleneck": _bottleneck(processes),
        "processes": [_process(job, each, silent) for each in processes],
        "tables": _tables(processes),
        "checkpoint": _checkpoint(processes),
        "findings": [
            {"rule": f.rule, "subject": f.subject, "text": f.text, "advice": f.advice}
            for f in findings
        ],
        "notes": [{"time": moment, "text": text} for moment, text in job.notes],
    }


def plain(value: Any) -> Any:
    """Replace nan and infinity, which JSON cannot represent, with None.

    >>> plain({"a": [1.0, float("nan")]})
    {'a': [1.0, None]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value


def _answering(processes: Sequence[Watched], role: str) -> list[Interval]:
    return [each.interval for each in processes if each.role == role and each.interval is not None]


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else None


def _staleness(interval: Interval) -> float:
    count = interval.grown("sparsefleet_worker_staleness_steps_count")
    if not count:
        return math.nan
    return interval.grown("sparsefleet_worker_staleness_steps_sum") / count


def _epoch(processes: Sequence[Watched]) -> View | None:
    workers = _answering(processes, "worker")
    if not workers:
        return None
    return {
        "now": max(each.after.get("sparsefleet_worker_epoch") for each in workers),
        "of": max(each.after.get("sparsefleet_worker_epochs") for each in workers),
    }


def _bottleneck(processes: Sequence[Watched]) -> View | None:
    seconds: dict[str, float] = {}
    for each in _answering(processes, "worker"):
        for name, value in each.grown_by(_ACTIVITY, "activity").items():
            seconds[name] = seconds.get(name, 0.0) + value
    has_servers = any(each.role == "server" for each in processes)
    found = find_bottleneck(seconds, is_local=not has_servers)
    if found is None:
        return None
    total = sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items()}
    return {"text": str(found), "activity": found.activity, "shares": shares}


def _process(job: JobFile, each: Watched, silent: Sequence[str]) -> View:
    known = next((p for p in job.processes if (p.role, p.index) == (each.role, each.index)), None)
    interval = each.interval
    shown: View = {
        "name": each.name,
        "role": each.role,
        "index": each.index,
        "pid": known.pid if known else 0,
        "starts": known.starts if known else 1,
        "state": "no answer" if _is_silent(each) else each.state,
        "doing": known.detail if known and each.state != "running" else "",
    }
    if interval is None:
        return shown
    shown["cpu"] = interval.rate("sparsefleet_process_cpu_seconds_total")
    shown["memory_bytes"] = interval.after.get("sparsefleet_process_resident_memory_bytes")
    if each.state == "running":
        shown["doing"] = _doing(each.role, interval, silent)
    if each.role == "worker":
        shown["rate"] = interval.rate("sparsefleet_worker_examples_total")
        shown["rate_unit"] = "examples/s"
    elif each.role == "server":
        shown["rate"] = (
            sum(interval.grown_by("sparsefleet_server_requests_total", "type").values())
            / interval.seconds
        )
        shown["rate_unit"] = "requests/s"
    return shown


def _is_silent(each: Watched) -> bool:
    return each.state == "running" and each.interval is None and each.silent_s is not None


def _doing(role: str, interval: Interval, silent: Sequence[str]) -> str:
    """Describe in a few words what a process is doing or waiting for."""
    if role == "server":
        threads = max(interval.after.get("sparsefleet_server_threads"), 1.0)
        busy = (
            sum(interval.grown(f"{_REQUESTS}_sum", type=kind) for kind in ("pull", "push"))
            / interval.seconds
        )
        return f"serving, {100 * min(busy / threads, 1.0):.0f}% busy" if busy else "idle"
    if interval.is_first:
        return "starting"
    seconds = interval.grown_by(_ACTIVITY, "activity")
    if not interval.grown("sparsefleet_worker_steps_total"):
        if silent:
            return f"waiting for {' and '.join(silent)}"
        if interval.after.get("sparsefleet_worker_steps_total"):
            return "between epochs, or in a long step"
        return "preparing"
    total = sum(seconds.values())
    waits = {name: seconds.get(name, 0.0) / total for name in _WAITS} if total > 0 else {}
    name = max(waits, key=lambda part: waits[part], default="")
    if name and waits[name] > _WAITING:
        return f"waiting for {_WAITS[name]} {100 * waits[name]:.0f}% of the time"
    return "training"


def _tables(processes: Sequence[Watched]) -> list[View]:
    tables: dict[str, View] = {}
    sampled: dict[str, dict[str, float]] = {}
    holders = [*_answering(processes, "server"), *_answering(processes, "worker")]
    for each in holders:
        for name, rows in each.after.by("sparsefleet_table_rows", "table").items():
            table = tables.setdefault(
                name,
                {
                    "name": name,
                    "rows": 0.0,
                    "bytes": 0.0,
                    "created_per_s": 0.0,
                    "evicted_per_s": 0.0,
                    "rejected": 0.0,
                    "pulled_per_s": 0.0,
                },
            )
            table["rows"] += rows
            table["bytes"] += each.after.get("sparsefleet_table_memory_bytes", table=name)
            table["rejected"] += each.after.get(
                "sparsefleet_table_rejected_gradients_total", table=name
            )
            for key in ("created", "evicted", "pulled"):
                metric = f"sparsefleet_table_{key}_rows_total"
                table[f"{key}_per_s"] += each.rate(metric, table=name)
            parts = sampled.setdefault(name, {})
            for part in ("gradient", "row"):
                for what in ("squares", "samples"):
                    metric = f"sparsefleet_table_{part}_{what}_total"
                    key = f"{part}_{what}"
                    parts[key] = parts.get(key, 0.0) + each.grown(metric, table=name)
    for each in _answering(processes, "worker"):
        for name, ids in each.grown_by("sparsefleet_worker_lookups_total", "table").items():
            if name in tables and ids:
                unique = each.grown("sparsefleet_worker_unique_lookups_total", table=name)
                tables[name]["unique"] = unique / ids
                tables[name]["hot"] = each.after.get("sparsefleet_worker_hot_key_ratio", table=name)
    skew = skews(processes)
    for name, table in tables.items():
        parts = sampled[name]
        for part in ("gradient", "row"):
            count = parts[f"{part}_samples"]
            norm = math.sqrt(parts[f"{part}_squares"] / count) if count else None
            table[f"{part}_norm"] = norm
        table["skew"] = skew.get(name)
        pulled = table["pulled_per_s"]
        table["new_share"] = table["created_per_s"] / pulled if pulled else None
    return [tables[name] for name in sorted(tables)]


def _checkpoint(processes: Sequence[Watched]) -> View | None:
    for each in _answering(processes, "worker"):
        if "sparsefleet_checkpoint_time_seconds" in each.after:
            at = each.after.get("sparsefleet_checkpoint_time_seconds")
            return {
                "count": each.after.get("sparsefleet_checkpoints_total"),
                "failures": each.after.get("sparsefleet_checkpoint_failures_total"),
                "step": each.after.get("sparsefleet_checkpoint_step"),
                "seconds": each.after.get("sparsefleet_checkpoint_seconds"),
                "age_s": max(time.time() - at, 0.0),
            }
    return None
