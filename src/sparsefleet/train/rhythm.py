"""How often something is to be done in a training."""

from __future__ import annotations

import time

__all__ = ["Rhythm"]


class Rhythm:
    """Due after so many steps, or seconds, since it was done last. Not thread-safe.

    >>> rhythm = Rhythm(every_steps=3, every_s=None)
    >>> rhythm.is_count(2), rhythm.is_count(3), rhythm.is_time()
    (False, True, False)
    """

    def __init__(self, every_steps: int | None, every_s: float | None) -> None:
        self._every_steps = every_steps
        self._every_s = every_s
        self.steps = 0
        """Steps of this worker since it was done."""
        self.done_at = 0
        """Where workers step together: the step after which it was done."""
        self.restart(0)

    @property
    def has_clock(self) -> bool:
        """Whether it may fall due by the clock."""
        return self._every_s is not None

    def restart(self, steps: int) -> None:
        """It was done now, after `steps` steps where workers take them together."""
        self.steps = 0
        self.done_at = steps
        self._since = time.monotonic()

    def is_time(self) -> bool:
        return self._every_s is not None and time.monotonic() - self._since >= self._every_s

    def is_count(self, steps: int) -> bool:
        """Whether it is due after so many steps since it was done."""
        return self._every_steps is not None and steps >= self._every_steps
