"""Sync: all threads of all workers take one step together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparsefleet.modes.half_async import MeetingMode
from sparsefleet.modes.mode_setting import ModeSetting, StepGradients
from sparsefleet.modes.rates import RateKeeper
from sparsefleet.modes.worker_group import WorkerGroup
from sparsefleet.store.arrays import Floats, Keys


@dataclass(frozen=True, kw_only=True, slots=True)
class SyncConfig:
    """Step together. Nothing to choose: all threads of all workers, every step."""


class SyncMode(MeetingMode):
    """Servers take one optimizer step with the mean over the workers that delivered.

    Each worker delivers the mean over its threads. A schedule counts rounds.
    """

    name: ClassVar[str] = "sync"
    steps_together: ClassVar[Literal["nobody", "threads", "workers"]] = "workers"

    def __init__(self, setting: ModeSetting) -> None:
        super().__init__(setting)
        self._group = WorkerGroup(setting)
        self._rounds = 0
        self._rates = RateKeeper.of(setting)

    def start(self) -> None:
        """Fetches the dense values and joins the other workers."""
        super().start()
        self._group.join()

    @property
    def steps_of_schedule(self) -> int:
        return self._rounds

    def leave(self) -> None:
        self._raise_failure()
        if self._round.leave() == 0:
            self._group.leave()

    def rejoin(self) -> None:
        """Also waits for the other workers, and takes over their count of rounds and what they did.

        A worker that ran out of data early has not seen the last rounds of the others.
        """
        super().rejoin()
        self._rounds = self._group.next_pass(self._rounds)
        self._fetch_dense()

    def _push(
        self, merged: StepGradients, count: int, rows: Mapping[str, tuple[Keys, Floats]]
    ) -> None:
        # Every worker sets the rates: after the round before was applied everywhere, and before
        # this one can be, so it does not matter who comes first or has left.
        if self._rates is not None:
            self._rates.at(self._rounds)
        self._store.push_round(
            self._group.member,
            self._rounds,
            merged.sparse,
            merged.all_dense(),
            values=self._fetched(),
            rows=rows,
            unique=count == 1,
            timeout_s=self._setting.wait_s,
        )
        self._rounds += 1

    def _say_goodbye(self) -> None:
        self._group.close()
