"""Profile runs with torch's profiler; print a table, and write a trace for a browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from sparsefleet.fluid.paths import unknown_names

__getattr__ = unknown_names("fluid.profiler")

__all__ = ["cuda_profiler", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_ACTIVITIES = {
    "CPU": [ProfilerActivity.CPU],
    "GPU": [ProfilerActivity.CPU, ProfilerActivity.CUDA],
    "All": [ProfilerActivity.CPU, ProfilerActivity.CUDA],
}
_SORTED_BY = {
    None: "self_cpu_time_total",
    "default": "self_cpu_time_total",
    "total": "cpu_time_total",
    "calls": "count",
    "ave": "cpu_time",
    "max": "cpu_time_total",
    "min": "cpu_time_total",
}
_TRACERS = ("Default", "OpDetail", "AllOpDetail")
_ROWS = 50


class _Recording:
    """The running profile, if any. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._profile: Any = None
        self._state = "CPU"

    def start(self, state: str) -> None:
        with self._lock:
            if self._profile is None:
                self._state = state
                self._profile = self._begun()

    def restart(self) -> None:
        with self._lock:
            if self._profile is not None:
                self._profile.stop()
                self._profile = self._begun()

    def stop(self) -> Any:
        with self._lock:
            found, self._profile = self._profile, None
            if found is not None:
                found.stop()
            return found

    def _begun(self) -> Any:
        profile = torch.profiler.profile(
            activities=_ACTIVITIES[self._state],
            # Includes the threads of train_from_dataset and of replicas.
            experimental_config=torch._C._profiler._ExperimentalConfig(profile_all_threads=True),
        )
        profile.start()
        return profile


_recording = _Recording()


def start_profiler(state: str, tracer_option: str = "Default") -> None:
    """Start recording all threads; does nothing if already recording.

    state: 'CPU'; 'GPU' or 'All' also record GPU kernels.
    tracer_option: has no effect, since the operators of programs and of torch are always recorded.
    """
    if state not in _ACTIVITIES:
        raise ValueError(f"state must be 'CPU', 'GPU' or 'All', got {state!r}")
    if tracer_option not in _TRACERS:
        raise ValueError(
            f"tracer_option must be one of {', '.join(_TRACERS)}, got {tracer_option!r}"
        )
    _recording.start(state)


def stop_profiler(sorted_key: str | None = None, profile_path: str = "/tmp/profile") -> None:
    """Stop recording, print a table, and write a trace for chrome://tracing and Perfetto.

    sorted_key: 'calls', 'total', 'ave', 'max', 'min' or None; the largest values come first.
    profile_path: where to write the trace.
    """
    if sorted_key not in _SORTED_BY:
        known = ", ".join(repr(key) for key in _SORTED_BY)
        raise ValueError(f"sorted_key must be one of {known}, got {sorted_key!r}")
    found = _recording.stop()
    if found is None:
        return
    Path(profile_path).parent.mkdir(parents=True, exist_ok=True)
    table = found.key_averages().table(sort_by=_SORTED_BY[sorted_key], row_limit=_ROWS)
    print(table, flush=True)
    found.export_chrome_trace(str(profile_path))


def reset_profiler() -> None:
    """Discard the data recorded so far; recording continues."""
    _recording.restart()


@contextmanager
def profiler(
    state: str,
    sorted_key: str | None = None,
    profile_path: str = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Profile the `with` block: call `start_profiler` before it and `stop_profiler` after it."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextmanager
def cuda_profiler(
    output_file: str, output_mode: str | None = None, config: list[str] | None = None
) -> Iterator[None]:
    """Run NVIDIA's profiler during the `with` block. Raises RuntimeError if there is no GPU."""
    del (
        output_file,
        output_mode,
        config,
    )  # options for nvprof, which now wraps the whole process
    if not torch.cuda.is_available():
        raise RuntimeError(
            "cuda_profiler needs a GPU that torch can see; use fluid.profiler.profiler('CPU')"
        )
    with torch.cuda.profiler.profile():
        yield
