"""Runs rounds in which sides take turns; a side that fails is reported and dropped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ctr_names import PADDLE
from ctr_start import SideSpec, Sources, StartedSide, start
from measure import console
from side_processes import Section

GEO_STEPS = 500
"""Steps of a worker in a GEO section: enough for five exchanges, because the end of a section adds
one more that a training run has only once.
"""
GEO_SECTIONS = 6
"""A GEO section is at most this many times as long as others."""
ERROR_LENGTH = 600


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundsConfig:
    """How much is measured."""

    repeats: int
    """Measured sections per side and batch size."""
    section_s: float
    """The target duration of a section; sections that read files take as long as their files."""
    warm_examples: int
    """Warm-up examples, trained on twice; the second time determines the size of a section."""
    batches: Sequence[int] = (1000, 100)


@dataclass(slots=True)
class SideFigures:
    """The figures of one side; rates and CPU times by batch size, then by repeat."""

    error: str | None = None
    startup_s: float = 0.0
    worker_bytes: int = 0
    """The peak resident memory of the largest worker."""
    server_bytes: int = 0
    sections: dict[str, list[Section]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def run_rounds(
    specs: Iterable[SideSpec], sources: Sources, config: RoundsConfig
) -> dict[str, dict[str, Any]]:
    """Return the figures of each side by name, as JSON stores them.

    Sides take turns because machines are shared and drift: sides measured one after another would
    not be comparable.
    """
    figures = {spec.name: SideFigures() for spec in specs}
    specs_by_name = {spec.name: spec for spec in specs}
    with contextlib.ExitStack() as stack:
        sides: dict[str, StartedSide] = {}
        # One after another, so that they do not slow each other down.
        for name, spec in specs_by_name.items():
            with _told(figures[name], sides, name):
                one = start(spec, sources)
                stack.callback(_close, one)
                sides[name] = one
                figures[name].startup_s = one.startup_s
                console.print(f"  {name}: ready after {one.startup_s:.1f} s", highlight=False)
        _take_rounds(sides, figures, config)
        for name, one in sides.items():
            memory = one.side.peak_memory_bytes()
            figures[name].worker_bytes, figures[name].server_bytes = memory
    return {name: of_side.as_json() for name, of_side in figures.items()}


def _take_rounds(
    sides: dict[str, StartedSide], figures: dict[str, SideFigures], config: RoundsConfig
) -> None:
    sizes: dict[tuple[str, int], int] = {}
    for name in list(sides):
        with _told(figures[name], sides, name):
            for batch in config.batches:
                sizes[name, batch] = section_examples(sides[name], batch, config)
    for number in range(config.repeats):
        begun = time.monotonic()
        for batch in config.batches:
            for name in list(sides):
                with _told(figures[name], sides, name):
                    taken = sides[name].side.run(batch, sizes[name, batch])
                    figures[name].sections.setdefault(str(batch), []).append(taken)
        took_s = time.monotonic() - begun
        console.print(f"  round {number + 1} of {config.repeats}: {took_s:.0f} s", highlight=False)


def section_examples(one: StartedSide, batch: int, config: RoundsConfig) -> int:
    """Return the examples of a section, a whole number of steps, after one or two warm-ups."""
    step = batch * one.side.num_workers
    warm = max(step, config.warm_examples // step * step)
    one.side.run(batch, warm)
    if one.spec.from_files or one.spec.engine == PADDLE:
        return warm  # they train on all of their files, whatever the request
    rate = one.side.run(batch, warm).examples_per_s
    steps = max(1, round(rate * config.section_s / step))
    if one.spec.mode == "geo":
        steps = max(steps, min(GEO_STEPS, round(GEO_SECTIONS * rate * config.section_s / step)))
    return steps * step


def _close(one: StartedSide) -> None:
    """Close the side; an error at the end spoils no figures."""
    with contextlib.suppress(Exception):
        one.side.close()


@contextlib.contextmanager
def _told(figures: SideFigures, sides: dict[str, StartedSide], name: str) -> Any:
    """Record an error as the side's figure; the others continue without it."""
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        figures.error = f"{type(error).__name__}: {error}"[-ERROR_LENGTH:]
        console.print(f"  {name}: {figures.error}", style="red", highlight=False, markup=False)
        if (one := sides.pop(name, None)) is not None:
            _close(one)
