"""Diagnosis: the bottleneck of a job, and rules that detect what is wrong and say what to do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from sparsefleet.monitor.reading import Interval

__all__ = ["Bottleneck", "Finding", "RULES", "Scene", "Watched", "diagnose", "find_bottleneck"]

_SEVERE = 0.3  # any activity but computing above this share is the bottleneck
_ADVICE = {
    "data": "reading batches is the bottleneck; read ahead (a DataLoader with workers, "
    "prefetch=True), parse less in Python, or keep the data in memory",
    "pull": "fetching rows is the bottleneck; use larger batches, a mode that may prefetch (async, "
    'geo), more servers, or a faster link; on a slow network, set wire_dtype="bf16"',
    "push": (
        "pushing gradients is the bottleneck; use larger batches, more servers, a mode that "
        "sends in the background (async, geo) or, in sync, workers of equal speed; on a slow "
        'network, set wire_dtype="bf16"'
    ),
    "wait": (
        "threads wait for each other or for the sender; use async, geo, a larger send queue, or "
        "batches of equal size"
    ),
    "other": "the Python code around the steps is the bottleneck; use larger batches, or "
    "workers instead of threads",
    "compute": (
        "computing is the bottleneck, as it should be; add cores, threads or workers to go faster"
    ),
}
_LOCAL_ADVICE = {
    "pull": "looking up rows is the bottleneck; use larger batches, or fewer distinct ids per "
    "batch",
    "push": "applying gradients is the bottleneck; use larger batches, or fewer distinct ids "
    "per batch",
}
"""Advice for training without servers."""


class Bottleneck(NamedTuple):
    """The activity that limits the speed, its share of the time, and a remedy."""

    activity: str
    share: float
    advice: str

    def __str__(self) -> str:
        return f"{100 * self.share:.0f}% {self.activity}: {self.advice}"


def find_bottleneck(seconds: Mapping[str, float], *, is_local: bool = False) -> Bottleneck | None:
    """Return the bottleneck, given the training threads' seconds by activity.

    Return None if no thread has computed. is_local: whether tables are in the worker's own process.

    >>> find_bottleneck({"compute": 5.0, "data": 4.0}).activity
    'data'
    >>> find_bottleneck({"compute": 9.0, "data": 1.0}).activity
    'compute'
    """
    if seconds.get("compute", 0.0) <= 0:
        return None
    total = sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items()}
    computing = shares.pop("compute")
    name = max(shares, key=lambda part: shares[part], default="compute")
    share = shares.get(name, 0.0)
    if computing >= share and share < _SEVERE:
        name, share = "compute", computing
    advice = {**_ADVICE, **_LOCAL_ADVICE} if is_local else _ADVICE
    return Bottleneck(name, share, advice[name])


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with a process or table."""

    rule: str
    subject: str
    text: str
    advice: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """The metrics and status of one process in the last interval."""

    role: str
    index: int
    interval: Interval | None
    """The last interval, or None if the process does not answer."""
    silent_s: float | None = None
    """Seconds since the process last answered; None if it has never answered, for example because
    its script does not train.
    """
    state: str = "running"

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """The state of all processes of a job in the last interval, with some earlier data."""

    processes: Sequence[Watched]
    staleness: Mapping[int, Sequence[float]] = field(default_factory=dict)
    """Mean staleness of each worker in recent intervals, oldest first."""
    births: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Share of the rows pulled from each table that were new, in recent intervals, oldest first."""

    def of(self, role: str) -> list[tuple[Watched, Interval]]:
        """Return the processes with this role polled at least twice, and their last intervals."""
        return [
            (each, each.interval)
            for each in self.processes
            if each.role == role and each.interval is not None and not each.interval.is_first
        ]


Rule = Callable[[Scene], Iterator[Finding]]

_ACTIVITY = "sparsefleet_worker_activity_seconds_total"
_SLOW = 1.5  # times the median of the others
_MIN_STEPS = 3
_HOT = 1.5  # times the mean over all servers
_MIN_ROWS_PER_S = 100.0
_SLOW_APPEND_S = 0.005
_SLOW_SYNC_S = 0.05
_SLOW_SAVE_SHARE = 0.2
_DATA_SHARE = 0.3
_FAULTS_PER_S = 20.0
_STALE = 8.0
_STALE_GROWTH = 2.0
_STALE_POINTS = 4
_BIRTH_SHARE = 0.9
_BIRTH_POINTS = 3
_BAD_LINE_SHARE = 0.01
_SILENT_S = 2.0


def diagnose(scene: Scene) -> list[Finding]:
    """Return the findings, in the order of the rules."""
    return [finding for rule in RULES.values() for finding in rule(scene)]


def _silent(scene: Scene) -> Iterator[Finding]:
    for each in scene.processes:
        if each.state == "suspended":
            yield Finding(
                "silent",
                each.name,
                f"{each.name} is suspended (SIGSTOP, or a debugger)",
                "resume it with kill -CONT; until then, the others wait for it or treat it as lost",
            )
        elif each.state == "running" and each.silent_s is not None and each.silent_s >= _SILENT_S:
            yield Finding(
                "silent",
                each.name,
                f"{each.name} has not answered for {each.silent_s:.0f} s",
                "look at its log; its machine may be gone, or the process may be swapping",
            )


def _straggler(scene: Scene) -> Iterator[Finding]:
    costs = {}
    for each, interval in scene.of("worker"):
        steps = interval.grown("sparsefleet_worker_steps_total")
        busy = interval.grown_by(_ACTIVITY, "activity")
        own_s = sum(busy.get(name, 0.0) for name in ("data", "compute", "other"))
        if steps >= _MIN_STEPS:
            costs[each.name] = own_s / steps
    for name, cost in costs.items():
        others = [value for other, value in costs.items() if other != name]
        usual = median(others) if others else 0.0
        if usual > 0 and cost > _SLOW * usual:
            yield Finding(
                "straggler",
                name,
                f"{name} takes {1e3 * cost:.1f} ms per step for its own work, the others "
                f"{1e3 * usual:.1f} ms",
                "look for other programs on its machine, a slower CPU, or larger files; sync "
                "waits for the slowest worker, async and geo do not",
            )


def _hot_shard(scene: Scene) -> Iterator[Finding]:
    rows: dict[str, dict[str, float]] = {}
    for each, interval in scene.of("server"):
        for name in ("pulled", "pushed"):
            grown = interval.grown_by(f"sparsefleet_table_{name}_rows_total", "table")
            for table, count in grown.items():
                of_table = rows.setdefault(table, {})
                of_table[each.name] = of_table.get(each.name, 0.0) + count / interval.seconds
    for table, rates in rows.items():
        mean = sum(rates.values()) / len(rates)
        name = max(rates, key=lambda server: rates[server])
        if len(rates) > 1 and mean >= _MIN_ROWS_PER_S and rates[name] > _HOT * mean:
            yield Finding(
                "hot_shard",
                name,
                f"{name} handles {rates[name] / mean:.1f} times the mean load of all servers for "
                f"table '{table}' ({rates[name]:,.0f} rows/s)",
                "a few ids are looked up far more often than others: use larger batches, which "
                "look up each id once, use geo, or drop ids that every example has",
            )


def _slow_disk(scene: Scene) -> Iterator[Finding]:
    limits = {
        "sparsefleet_log_append_seconds": (_SLOW_APPEND_S, "writing a record to its log"),
        "sparsefleet_log_sync_seconds": (_SLOW_SYNC_S, "syncing its log to disk"),
    }
    for each, interval in scene.of("server"):
        for name, (limit_s, what) in limits.items():
            count = interval.grown(f"{name}_count")
            mean_s = interval.grown(f"{name}_sum") / count if count else 0.0
            if mean_s > limit_s:
                yield Finding(
                    "slow_disk",
                    each.name,
                    f"{each.name} spends {1e3 * mean_s:.0f} ms on {what}",
                    "put --log-dir on a local SSD, move other writers off that disk, or use "
                    "durability 'process' instead of 'disk'",
                )
                break
    for each, interval in scene.of("worker"):
        threads = max(interval.after.get("sparsefleet_worker_threads"), 1.0)
        paused = interval.rate("sparsefleet_checkpoint_pause_seconds_total") / threads
        if paused > _SLOW_SAVE_SHARE:
            yield Finding(
                "slow_disk",
                each.name,
                f"{each.name} pauses {100 * paused:.0f}% of the time for checkpoints",
                "save less often, save deltas (deltas_between_fulls), or use a faster disk",
            )


def _full_disk(scene: Scene) -> Iterator[Finding]:
    for each, interval in scene.of("server"):
        if interval.after.get("sparsefleet_log_disk_full") > 0:
            yield Finding(
                "full_disk",
                each.name,
                f"{each.name} has no disk space for its log and cannot acknowledge changes until "
                "there is some",
                "free space under --log-dir; its log names the directory. Workers wait for "
                "SPARSEFLEET_FAILOVER_WAIT_S",
            )


def _slow_reader(scene: Scene) -> Iterator[Finding]:
    for each, interval in scene.of("worker"):
        shares = interval.grown_by(_ACTIVITY, "activity")
        total = sum(shares.values())
        share = shares.get("data", 0.0) / total if total > 0 else 0.0
        if share > _DATA_SHARE:
            yield Finding(
                "slow_reader",
                each.name,
                f"{each.name} waits for data {100 * share:.0f}% of the time",
                "use more reading threads (Reader(threads=...)) and at least one file per "
                "thread, a built-in format instead of a pipe command, or prefetch=True; or keep "
                "the data in memory",
            )


def _swapping(scene: Scene) -> Iterator[Finding]:
    for each in scene.processes:
        interval = each.interval
        if interval is None or interval.is_first:
            continue
        faults = interval.rate("sparsefleet_process_major_faults_total")
        swapped = interval.after.get("sparsefleet_process_swap_bytes")
        if swapped > 0 and faults > _FAULTS_PER_S:
            yield Finding(
                "swapping",
                each.name,
                f"{each.name} swaps: {swapped / 2**20:,.0f} MiB swapped out, {faults:.0f} page "
                "faults per second that read from disk",
                "add servers or memory, admit fewer ids, or evict old rows; a server that swaps "
                "slows down all workers",
            )


def _staleness(scene: Scene) -> Iterator[Finding]:
    for worker, points in scene.staleness.items():
        before = _before_growing_stale(points)
        if before is not None:
            yield Finding(
                "growing_staleness",
                f"worker {worker}",
                f"worker {worker} trains on increasingly stale values: {before:.1f} steps behind "
                f"at first, {points[-1]:.1f} now",
                "the servers cannot keep up: add servers, merge more gradients per push, bound "
                "the send queue, or use half_async",
            )


def _before_growing_stale(points: Sequence[float]) -> float | None:
    """Return the staleness before it started to grow, steadily or in one large jump.

    Return None if it does not grow.
    """
    slow = points[-_STALE_POINTS:]
    rises = all(after >= before for before, after in itertools.pairwise(slow))
    if len(slow) == _STALE_POINTS and rises and slow[-1] >= _stale_after(slow[0]):
        return slow[0]
    fast = points[-3:]  # twice in a row, so it is not just one bad second
    if len(fast) == 3 and min(fast[1:]) >= 2 * _stale_after(fast[0]):
        return fast[0]
    return None


def _stale_after(before: float) -> float:
    return max(_STALE, _STALE_GROWTH * before)


def _dying_feature(scene: Scene) -> Iterator[Finding]:
    for table, points in scene.births.items():
        recent = points[-_BIRTH_POINTS:]
        if len(recent) == _BIRTH_POINTS and min(recent) > _BIRTH_SHARE:
            yield Finding(
                "dying_feature",
                f"table {table}",
                f"{100 * recent[-1]:.0f}% of the ids looked up in table '{table}' are new: rows "
                "are created and never trained again",
                "check how this feature is computed (a timestamp, a request ID, a changed hash); "
                "drop it, or give the table an admission rule",
            )


def _not_finite(scene: Scene) -> Iterator[Finding]:
    advice = (
        "lower the learning rate, clip gradients (TrainerConfig.clip_grad_norm), and look for NaN "
        "in the inputs"
    )
    for each, interval in scene.of("server"):
        grown = interval.grown_by("sparsefleet_table_rejected_gradients_total", "table")
        for table, count in grown.items():
            if count > 0:
                yield Finding(
                    "nan_gradients",
                    f"table {table}",
                    f"{each.name} rejected {count:,.0f} row gradients for table '{table}' that "
                    "were NaN or infinite",
                    advice,
                )
    for each, interval in scene.of("worker"):
        skipped = interval.grown("sparsefleet_worker_skipped_steps_total")
        if skipped > 0:
            yield Finding(
                "nan_gradients",
                each.name,
                f"{each.name} skipped {skipped:,.0f} batches whose loss was NaN or infinite",
                advice,
            )


def _bad_lines(scene: Scene) -> Iterator[Finding]:
    for each, interval in scene.of("worker"):
        bad = interval.grown("sparsefleet_reader_bad_lines_total")
        lines = interval.grown("sparsefleet_reader_lines_total")
        if bad > 0 and bad > _BAD_LINE_SHARE * lines:
            yield Finding(
                "bad_lines",
                each.name,
                f"{each.name} skipped {100 * bad / max(lines, bad):.0f}% of its lines as malformed",
                "its log shows the first ones; check that the format matches the data",
            )


def _failed_saves(scene: Scene) -> Iterator[Finding]:
    for each, interval in scene.of("worker"):
        if interval.grown("sparsefleet_checkpoint_failures_total") > 0:
            yield Finding(
                "failed_checkpoint",
                each.name,
                f"{each.name} could not write a checkpoint; training continues",
                f"see the log of {each.name} for the cause, such as a full disk or missing "
                "permissions",
            )


RULES: dict[str, Rule] = {
    "silent": _silent,
    "straggler": _straggler,
    "hot_shard": _hot_shard,
    "slow_disk": _slow_disk,
    "full_disk": _full_disk,
    "slow_reader": _slow_reader,
    "swapping": _swapping,
    "growing_staleness": _staleness,
    "dying_feature": _dying_feature,
    "nan_gradients": _not_finite,
    "bad_lines": _bad_lines,
    "failed_checkpoint": _failed_saves,
}
"""All diagnoses, by their name in the metric `sparsefleet_job_diagnosis`."""
