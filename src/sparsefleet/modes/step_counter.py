"""Mini-batches of all workers together, counted for a schedule."""

from __future__ import annotations

from sparsefleet.modes.mode_setting import ModeSetting
from sparsefleet.modes.rates import RateKeeper
from sparsefleet.store import RoundMember


class StepCounter:
    """Sets learning rates by the number of mini-batches of all workers, counted on the servers.

    Without a schedule nothing is counted or sent. Not thread-safe: pushes come one after another.
    """

    def __init__(self, setting: ModeSetting) -> None:
        self._store = setting.store
        self._own = 0
        self.total = 0
        """Mini-batches of all workers, as far as known here; 0 without a schedule."""
        self._rates = RateKeeper.of(setting)
        self._member = RoundMember(
            group=f"{setting.group}/steps",
            rank=setting.worker_index,
            size=setting.worker_num,
            go_on_without_lost=setting.go_on_without_lost,
        )

    def start(self) -> None:
        """Sets the first rates, unless others are further already."""
        if self._rates is not None:
            self.total = self._store.advance_clock(self._member, 0)
            self._rates.at(self.total)

    def add(self, count: int) -> None:
        """After a push of so many mini-batches: sets the rates for the next, of any worker."""
        if self._rates is not None:
            self._own += count
            self.total = self._store.advance_clock(self._member, self._own)
            self._rates.at(self.total)

    def close(self) -> None:
        """This worker counts no more; what it counted stays in the sum."""
        if self._rates is not None:
            self._store.leave_group(self._member)
            self._rates = None
