"""Runs a script for a few seconds in each mode, on this machine, and compares the modes."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require_int, require_positive
from sparsefleet.planning.workload import MODES

__all__ = [
    "ModeResult",
    "TRIAL_MODES",
    "TrialConfig",
    "recommend",
    "run_trials",
]

TRIAL_MODES = ("local", *MODES)
_START_S = 120.0
"""Seconds, in addition to training, that a script may take to start, load data and evaluate."""
_END_S = 30.0
_TAIL_LINES = 12
_WARM = 0.25  # the first part of a trial is excluded from its rate
_AUC_CLOSE = 0.002
_LOSS_CLOSE = 0.01
_AS_FAST = 0.95
_STRICT_FIRST = ("sync", "hybrid", "half_async", "async", "geo")
_ROLE_VARIABLES = ("SPARSEFLEET_", "PADDLE_", "TRAINING_ROLE", "RANK", "WORLD_SIZE")
_KEPT = ("SPARSEFLEET_JOB_KEY",)
Point = tuple[float, float, float]
"""Seconds elapsed, examples trained on, and the sum of their losses."""
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialConfig:
    """Settings of a trial."""

    script: str
    arguments: Sequence[str] = ()
    seconds: float = 60.0
    """Training time in each mode."""
    modes: Sequence[str] = TRIAL_MODES
    servers: int = 1
    workers: int = 2
    """Number of workers in every mode except local, which runs in one process."""
    log_dir: str = ""
    """Directory for the logs of all trials; "" keeps only the logs of trials that fail."""

    def __post_init__(self) -> None:
        require_positive(self, "seconds")
        require_int(self, "servers", 1, 1000)
        require_int(self, "workers", 1, 1000)
        if not os.path.isfile(self.script):
            raise ConfigError(f"--try {self.script!r}: no such file; pass a Python script")
        for mode in self.modes:
            if mode not in TRIAL_MODES:
                raise ConfigError(
                    f"each of --modes must be one of {','.join(TRIAL_MODES)}, got {mode!r}"
                )
        if not self.modes:
            raise ConfigError(f"--modes is empty: pass one or more of {','.join(TRIAL_MODES)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeResult:
    """The result of a trial in one mode."""

    mode: str
    error: str = ""
    """Why the trial failed; empty if it succeeded."""
    examples: int = 0
    seconds: float = 0.0
    examples_per_s: float = 0.0
    """The rate after the first quarter of the trial, during which processes start."""
    auc: float | None = None
    """AUC on held-out data, or on the last training batches if the script does not evaluate."""
    is_held_out: bool = False
    loss: float = math.nan
    """Mean over the second half of the examples that every mode has trained on."""
    staleness: float = 0.0
    """The average number of the worker's own mini-batches missing from a step's dense values."""
    bytes_per_example: float = 0.0
    points: Sequence[Point] = field(default=(), repr=False)


def run_trials(config: TrialConfig, *, say: Say = lambda _: None) -> list[ModeResult]:
    """Run the script in each mode in turn.

    Raises ConfigError if the script fails in the first mode or does not train with a Trainer, since
    the other modes would then fail, too.
    """
    folder = Path(config.log_dir or tempfile.mkdtemp(prefix="sparsefleet-trial-"))
    results: list[ModeResult] = []
    for mode in config.modes:
        say(f"{mode}: {config.seconds:g} s of training")
        result = _run_mode(mode, config, folder / mode)
        if result.error:
            say(f"{mode}: {result.error}")
            if not any(not one.error for one in results) and mode == config.modes[-1]:
                raise ConfigError(f"--try {config.script}: {result.error}")
        results.append(result)
    if not config.log_dir and not any(one.error for one in results):
        _remove(folder)
    return _at_equal_examples(results)


def _run_mode(mode: str, config: TrialConfig, folder: Path) -> ModeResult:
    folder.mkdir(parents=True, exist_ok=True)
    found = folder / "results"
    found.mkdir(exist_ok=True)
    for old in found.glob("worker-*.json"):
        old.unlink()
    environ = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_KEPT) or not name.startswith(_ROLE_VARIABLES)
    }
    environ |= {
        "SPARSEFLEET_MODE": mode,
        "SPARSEFLEET_TRIAL_SECONDS": str(config.seconds),
        "SPARSEFLEET_TRIAL_DIR": str(found.resolve()),
    }
    log = folder / "output.log"
    code = _run(_command(mode, config, folder), environ, log, config.seconds + _START_S)
    records = [_read(path) for path in sorted(found.glob("worker-*.json"))]
    records = [record for record in records if record]
    failed = next((record["error"] for record in records if record.get("error")), "")
    if code == _TIMED_OUT and not (records and all(record["points"] for record in records)):
        failed = f"not finished after {config.seconds + _START_S:g} s"
    elif code not in (0, _TIMED_OUT):
        failed = _cause(folder, log, code)
    elif not records:
        failed = (
            "the script exited without training: it must call sparsefleet's Trainer.fit in the "
            "process that was started"
        )
    elif not failed and not any(point[1] for record in records for point in record["points"]):
        failed = "the script trained on no examples: its data is empty, or too short for a step"
    if failed:
        return ModeResult(mode=mode, error=failed)
    trained = records[0]["mode"]
    if trained != mode:
        return ModeResult(
            mode=mode,
            error=(
                f"the script trained in mode {trained}; only a Trainer's mode can be set from "
                "outside"
            ),
        )
    return _result(mode, records)


def _command(mode: str, config: TrialConfig, folder: Path) -> list[str]:
    script = [config.script, *config.arguments]
    if mode == "local":
        return [sys.executable, *script]
    return [
        *(sys.executable, "-m", "sparsefleet", "launch", "--quiet", "--native-servers"),
        *("--servers", str(config.servers), "--workers", str(config.workers)),
        *("--log-dir", str(folder), *script),
    ]


_TIMED_OUT = -1000


def _run(command: Sequence[str], environ: Mapping[str, str], log: Path, timeout_s: float) -> int:
    """Run a command until it exits and return its exit code; kill it if it takes too long."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command], env={**environ}, stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return _TIMED_OUT
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(_END_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found


def _cause(folder: Path, log: Path, code: int) -> str:
    """Return the last error in a failed script's output, and the path of that output."""
    for path in (*sorted(folder.glob("workerlog.*")), log):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines[-_TAIL_LINES:] if "Error" in line and line[:1] != " "]
        if errors:
            return f"{errors[-1].strip()} (exit code {code}; full output in {path})"
    return f"exit code {code}; full output in {folder}"


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()


# -- figures ----------------------------------------------------------------------------------


def _result(mode: str, records: Sequence[Mapping[str, Any]]) -> ModeResult:
    trained = [record["points"] for record in records if record["points"]]
    points = _joined([[tuple(point) for point in each] for each in trained])
    seconds, examples, _ = points[-1]
    begin = _at(points, 0, seconds * _WARM)
    rate = (examples - begin[1]) / max(seconds - begin[0], 1e-9)
    evaluated = records[0].get("evaluated") or {}
    metrics = evaluated if "auc" in evaluated else records[0].get("metrics") or {}
    auc = metrics.get("auc")
    steps = sum(record["steps"] for record in records)
    stale = sum(record["staleness"] * record["steps"] for record in records) / max(steps, 1)
    return ModeResult(
        mode=mode,
        examples=int(examples),
        seconds=seconds,
        examples_per_s=rate,
        auc=None if auc is None or math.isnan(auc) else float(auc),
        is_held_out="auc" in evaluated,
        staleness=stale,
        bytes_per_example=records[0]["server_bytes"] / max(examples, 1),
        points=points,
    )


def _joined(workers: Sequence[Sequence[Point]]) -> list[Point]:
    """Return the sums over all workers at every time that any worker has recorded."""
    moments = sorted({point[0] for points in workers for point in points})
    joined = []
    for moment in moments:
        at = [_at(points, 0, moment) for points in workers]
        joined.append((moment, sum(one[1] for one in at), sum(one[2] for one in at)))
    return joined


def _at(points: Sequence[Point], column: int, wanted: float) -> Point:
    """Return the point where a column has this value, interpolated between recorded points.

    >>> _at([(1.0, 10.0, 5.0), (2.0, 30.0, 9.0)], 1, 20.0)
    (1.5, 20.0, 7.0)
    """
    start: Point = (0.0, 0.0, 0.0)
    for before, after in itertools.pairwise((start, *points)):
        if after[column] >= wanted:
            span = after[column] - before[column]
            part = (wanted - before[column]) / span if span else 0.0
            t, n, loss = (a + part * (b - a) for a, b in zip(before, after, strict=True))
            return t, n, loss
    return points[-1]


def _at_equal_examples(results: Sequence[ModeResult]) -> list[ModeResult]:
    """Fill in the loss over the examples that every mode has trained on."""
    import dataclasses

    trained = [one.examples for one in results if not one.error and one.examples]
    if not trained:
        return list(results)
    fewest = min(trained)
    filled = []
    for one in results:
        if one.error or not one.examples:
            filled.append(one)
            continue
        late, early = _at(one.points, 1, fewest), _at(one.points, 1, fewest / 2)
        loss = (late[2] - early[2]) / max(late[1] - early[1], 1e-9)
        filled.append(dataclasses.replace(one, loss=loss))
    return filled


# -- advice -----------------------------------------------------------------------------------


def recommend(results: Sequence[ModeResult]) -> tuple[str, list[str]]:
    """Return the recommended mode, and the reasons. Mode `local` is only a baseline."""
    local = next((one for one in results if one.mode == "local" and not one.error), None)
    completed = [one for one in results if one.mode != "local" and not one.error]
    if not completed:
        return ("local", ["no other mode completed"]) if local else ("", ["no mode ran"])
    reasons = []
    if local is None:
        reasons.append("local was not tried, so quality is not compared")
    elif not math.isfinite(local.loss):
        reasons.append(f"the loss of local is {local.loss}, so quality is not compared")
        local = None
    good = [one for one in completed if math.isfinite(one.loss)]
    for one in completed:
        if one not in good:
            reasons.append(f"{one.mode} is excluded: its loss is {one.loss}")
    if not good and local is not None:
        return "local", [*reasons, "no other mode has a finite loss"]
    if not good:
        return "", [*reasons, "no mode has a finite loss; try a lower learning rate"]
    close = [one for one in good if local is None or _is_close(one, local)]
    if not close and local is not None:
        least = min(good, key=lambda one: one.loss)
        reasons += [f"{one.mode}: {_gap(one, local)}" for one in good]
        reasons.append(
            f"no mode learns as well as local in this time; {least.mode} has the lowest loss. "
            "Run longer trials (--seconds) before you decide"
        )
        return least.mode, reasons
    for one in good:
        if one not in close and local is not None:
            reasons.append(f"{one.mode} is excluded: {_gap(one, local)}")
    fastest = max(close, key=lambda one: one.examples_per_s)
    strict = sorted(close, key=lambda one: _STRICT_FIRST.index(one.mode))
    chosen = next(one for one in strict if one.examples_per_s >= _AS_FAST * fastest.examples_per_s)
    if chosen is fastest:
        quality = "" if local is None else " that learns as well as local"
        reasons.append(f"{chosen.mode} is the fastest mode{quality}")
    else:
        reasons.append(
            f"{chosen.mode} is within 5% of the speed of {fastest.mode}, and its values are fresher"
        )
    if local is not None and local.examples_per_s > fastest.examples_per_s:
        reasons.append(
            "local is faster on this machine, where servers and workers share cores: use servers "
            "for tables that do not fit, or with several machines"
        )
    return chosen.mode, reasons


def _is_close(one: ModeResult, local: ModeResult) -> bool:
    if one.auc is not None and local.auc is not None and one.auc < local.auc - _AUC_CLOSE:
        # A slower mode sees fewer examples in the same time; only then does the loss decide.
        if one.examples >= local.examples:
            return False
        return one.loss <= local.loss * (1 + _LOSS_CLOSE)
    return one.loss <= local.loss * (1 + _LOSS_CLOSE)


def _gap(one: ModeResult, local: ModeResult) -> str:
    text = f"loss {one.loss:.4f} against {local.loss:.4f} on the same number of examples"
    if one.auc is not None and local.auc is not None:
        text += f", AUC {one.auc:.4f} against {local.auc:.4f}"
    return text
