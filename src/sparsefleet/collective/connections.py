"""What a rank has of the others: a store they share, signs of life, and process groups."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore  # typed there only

from sparsefleet.collective.heartbeat import Heartbeat
from sparsefleet.collective.rendezvous import (
    MeetingStore,
    loopback_sockets,
    missing_keys,
    second_connection,
)
from sparsefleet.errors import ConfigError, DeadlineError, RpcError

__all__ = ["Absence", "Connections", "name_ranks"]

_LEAVE_S = 6.0


@dataclass(frozen=True, slots=True)
class Absence:
    """Ranks that do not take part any more."""

    lost: tuple[int, ...] = ()
    """No sign of life, and no word of farewell."""
    left: dict[int, str] = field(default_factory=dict)
    """Rank -> what it said when it went."""

    def __bool__(self) -> bool:
        return bool(self.lost or self.left)

    def __str__(self) -> str:
        said = [f"rank {rank} {words}" for rank, words in self.left.items()]
        return "; ".join([*(f"rank {rank} is lost" for rank in self.lost), *said])


class Connections:
    """The others as one rank has them. Opened by the constructor, in all ranks together."""

    def __init__(self, rank: int, size: int, meeting: MeetingStore, *, timeout_s: float) -> None:
        self.store = meeting.store
        """For this world alone."""
        self._rank = rank
        self._others = [other for other in range(size) if other != rank]
        self._meeting = meeting
        self._timeout = timedelta(seconds=timeout_s)
        self._groups: list[dist.ProcessGroup] = []
        self._lost: set[int] = set()
        self._owns_default = False
        self._heartbeat = Heartbeat(second_connection(self.store), rank)
        atexit.register(self._leave_at_exit)

    def arrive(self, facts: str) -> None:
        """Waits for all ranks. Raises DeadlineError naming those that do not come, ConfigError
        if they were told other facts of the job."""
        self.store.set(f"here/{self._rank}", facts)
        timeout_s = self._timeout.total_seconds()
        missing = self.wait_for("here", timeout_s)
        if missing:
            self._lost.update(missing)
            raise DeadlineError(
                f"{name_ranks(missing)} did not come to the meeting point {self._meeting.where} "
                f"within {timeout_s:g} s: were all ranks started, and did none end early?"
            )
        for other in self._others:
            told = self.store.get(f"here/{other}").decode()
            if told != facts:
                raise ConfigError(
                    f"rank {other} was started for {told}, rank {self._rank} for {facts}: all "
                    "ranks of a job must be told the same"
                )

    def wait_for(self, what: str, timeout_s: float) -> list[int]:
        """Waits until all others have set their key `what/<rank>`; the ranks that have not.

        Nobody waits for ranks that are known to be lost.
        """
        keys = {f"{what}/{rank}": rank for rank in self._others if rank not in self._lost}
        return [keys[key] for key in missing_keys(self.store, keys, timeout_s)]

    def make_default_group(self, backend: str) -> dist.ProcessGroup:
        """The group of all ranks: the script's own if it has made one."""
        if not dist.is_initialized():
            with loopback_sockets(self._meeting.is_loopback):
                dist.init_process_group(
                    backend,
                    store=PrefixStore("group", self.store),
                    rank=self._rank,
                    world_size=len(self._others) + 1,
                    timeout=self._timeout,
                )
            self._owns_default = True
        group = dist.group.WORLD
        assert group is not None
        self._groups.append(group)
        return group

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """All ranks must call it; None for those outside."""
        with loopback_sockets(self._meeting.is_loopback):
            group = dist.new_group(list(ranks), timeout=self._timeout)
        if self._rank not in ranks:
            return None
        assert isinstance(group, dist.ProcessGroup)
        self._groups.append(group)
        return group

    def free_group(self, group: dist.ProcessGroup) -> None:
        """Ends the connections of a group in which no call is under way. Each rank by itself."""
        self._groups.remove(group)
        dist.destroy_process_group(group)

    def absence(self, ranks: Iterable[int], *, silence_s: float) -> Absence:
        """Who of the ranks is gone. Takes so long if one is that has not said so."""
        asked = [rank for rank in ranks if rank != self._rank]
        left = {rank: words for rank in asked if (words := self._farewell(rank))}
        silent = [] if left else self._heartbeat.silent_ranks(asked, silence_s)
        if self._heartbeat.is_store_gone and self._meeting.keeper not in (None, self._rank):
            silent = [self._meeting.keeper]
        self._lost.update(silent)
        return Absence(tuple(silent), left)

    def close(self, error: BaseException | None = None) -> None:
        """Says farewell, waits a while for the others to do so, and frees everything.

        Groups that others may still use are left to the end of the process instead: freeing one
        waits for calls under way, which nobody may answer. After an error nobody is waited for,
        but by the keeper of the store, whom others may be asking about a rank that is lost.
        """
        atexit.unregister(self._leave_at_exit)
        is_together = False
        if not self._heartbeat.is_store_gone:
            with contextlib.suppress(RuntimeError):  # the store is gone, and so is its keeper
                is_together = self._take_leave(error)
        self._heartbeat.stop()
        if not is_together:
            self._keep_groups_alive()
        if self._owns_default:
            dist.destroy_process_group()
        else:
            for group in self._groups[1:]:
                dist.destroy_process_group(group)
        self._groups.clear()

    def _take_leave(self, error: BaseException | None) -> bool:
        """Whether all ranks have left, so that no call is under way."""
        is_keeper = self._meeting.keeper == self._rank
        said = "has ended" if error is None else f"failed: {type(error).__name__}: {error}"
        self.store.set(f"left/{self._rank}", said)
        if error is not None and not (is_keeper and isinstance(error, RpcError)):
            return False
        missing = [*self.wait_for("left", _LEAVE_S), *self._lost]
        if not is_keeper:
            self._heartbeat.stop()
            self.store.set(f"gone/{self._rank}", "")
        elif not missing:
            self.wait_for("gone", _LEAVE_S)  # until then they ask this process's store
        return not missing

    def _farewell(self, rank: int) -> str:
        """Empty if it has said none."""
        key = f"left/{rank}"
        try:
            if self._heartbeat.is_store_gone or not self.store.check([key]):
                return ""
            return str(self.store.get(key), "utf-8")
        except RuntimeError:
            return ""

    def _leave_at_exit(self) -> None:
        """Of a process that ends without `close`, most often by an exception."""
        self.close(getattr(sys, "last_value", None))

    def _keep_groups_alive(self) -> None:
        for group in self._groups:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def name_ranks(ranks: Iterable[int]) -> str:
    """In words.

    >>> name_ranks([1]), name_ranks([0, 2])
    ('rank 1', 'ranks 0, 2')
    """
    found = sorted(ranks)
    return f"rank{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
