"""Fetching now and then."""

from __future__ import annotations

from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor import Executor

__all__ = ["PeriodicFetch"]


class PeriodicFetch:
    """Runs that fetch every `fetch_frequency`-th time, and give what was fetched last otherwise.

    A fetch waits for the run to end and copies values: a metric that is only printed now and then
    need not be had in each run. The first run fetches.

    >>> import numpy as np
    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     double = fluid.data("x", [1]) * 2.0
    ...     runs = PeriodicFetch(fluid.Executor(), [double], fetch_frequency=2)
    ...     [float(runs.run(feed={"x": np.float32([n])})[0][0]) for n in range(4)]
    [0.0, 0.0, 4.0, 4.0]
    """

    def __init__(self, executor: Executor, fetch_list: Any, fetch_frequency: int = 1) -> None:
        if not isinstance(fetch_frequency, int) or fetch_frequency < 1:
            raise ConfigError(
                f"PeriodicFetch: fetch_frequency must be an int >= 1, got {fetch_frequency!r}"
            )
        self._executor = executor
        self._fetch_list = fetch_list
        self._frequency = fetch_frequency
        self._runs = 0
        self._last: list[Any] = []

    @property
    def is_fresh(self) -> bool:
        """Whether the last run fetched."""
        return self._runs % self._frequency == 1 or self._frequency == 1

    def run(self, program: Any = None, feed: Any = None, **settings: Any) -> list[Any]:
        """As `Executor.run`, which gets the settings; the values fetched last."""
        is_due = self._runs % self._frequency == 0
        found = self._executor.run(program, feed, self._fetch_list if is_due else [], **settings)
        self._runs += 1
        if is_due:
            self._last = found
        return self._last
