"""This process among the ranks of a collective job."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store  # only this module has types

from sparsefleet.collective.connections import (
    Connections,
    check_gloo_transport,
    name_ranks,
    warn_of_exposed_traffic,
)
from sparsefleet.collective.rendezvous import (
    AnsweringStore,
    MeetingStore,
    backend_of,
    choose_device,
    open_meeting,
    reopen_meeting,
)
from sparsefleet.errors import ConfigError, DeadlineError, PeerLostError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["World"]

_LOOK_S = 2.0
_SILENCE_S = 3.0
_LONGEST_SILENCE_S = 15.0  # a long call that blocks all other threads must not look like a crash
_TIMEOUT_WORDS = ("timed out", "timeout")
_LOST_WORDS = ("connection", "reset by peer", "broken pipe", "read error", "write error")
_NETWORK_ERRORS = (dist.DistNetworkError, dist.DistStoreError)


class World:
    """This rank's connection to the other ranks of the job. Created by `join`.

    All ranks must make the same calls in the same order. Every wait is limited to `timeout_s`; the
    error names the ranks that are lost or late. Not thread-safe.

    >>> with World.join() as world:
    ...     world.rank, world.size, world.all_gather_bytes(b"mine")
    (0, 1, [b'mine'])
    """

    def __init__(
        self,
        rank: int,
        size: int,
        ranks_per_node: int,
        device: torch.device,
        *,
        timeout_s: float = 300.0,
    ) -> None:
        self.rank = rank
        """The rank of this process, from 0."""
        self.size = size
        """Number of ranks."""
        self.ranks_per_node = ranks_per_node
        """Ranks per machine, numbered contiguously; equal to `size` on a single machine."""
        self.device = device
        """The device on which this rank computes."""
        self.timeout_s = timeout_s
        """The limit for every wait for other ranks."""
        self._group: dist.ProcessGroup | None = None
        self._shared_groups: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        self._connections: Connections | None = None
        self._meeting: MeetingStore | None = None
        self._barriers = itertools.count()

    @classmethod
    def join(
        cls,
        *,
        rank: int = 0,
        size: int = 1,
        ranks_per_node: int = 0,
        meeting_point: str | Store | None = None,
        is_kept_elsewhere: bool = False,
        attempt: int = 0,
        incarnation: int | None = None,
        gpu: int | None = None,
        device: str | torch.device | None = None,
        timeout_s: float = 300.0,
    ) -> Self:
        """Connect to the other ranks. A single rank needs no network.

        meeting_point: the "host:port" at which rank 0 listens or, with `is_kept_elsewhere`, at
            which a process that is not a rank listens; or a torch.distributed store used for
            nothing else. None uses the process group that the script has created. An existing
            process group takes precedence.
        ranks_per_node: 0 if all ranks are on one machine.
        attempt: how many times the job was restarted.
        incarnation: the number of earlier processes with this rank, if lost ranks are replaced; the
            other ranks wait for the replacement in `meet_again`.
        gpu: the GPU to use, if there are any (default: one per rank, in order).
        device: always use this device.

        Raises ConfigError for impossible arguments, and DeadlineError, which names the ranks that
        did not arrive in time.
        """
        if not 0 <= rank < size:
            raise ConfigError(f"World.join: rank must be in 0..{size - 1}, got {rank}")
        per_node = ranks_per_node or size
        if not 1 <= per_node <= size:
            raise ConfigError(
                f"World.join: ranks_per_node must be in 1..{size}, or 0, got {ranks_per_node}"
            )
        index, count = (rank % per_node, per_node) if gpu is None else (gpu, gpu + 1)
        chosen = choose_device(index, count=count, wanted=device)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)  # makes "cuda" in the script mean this rank's GPU
        world = cls(rank, size, per_node, chosen, timeout_s=timeout_s)
        if size > 1:
            check_gloo_transport()
            meeting = open_meeting(
                meeting_point,
                rank,
                is_kept_elsewhere=is_kept_elsewhere,
                is_one_node=per_node == size,
                attempt=attempt,
                timeout_s=timeout_s,
                incarnation=incarnation,
            )
            if not meeting.is_loopback and rank % per_node == 0:
                warn_of_exposed_traffic(backend_of(chosen))
            world._connect(meeting, timeout_s)
        return world

    def _connect(self, meeting: MeetingStore, wait_s: float) -> None:
        """Connect to all ranks through `meeting`; if a rank is replaced meanwhile, meet again."""
        backend = backend_of(self.device)
        facts = f"{self.size} ranks, {self.ranks_per_node} per node, {backend}"
        deadline, remaining_s = time.monotonic() + wait_s, wait_s
        while True:
            self._meeting = meeting
            connections = Connections(self.rank, self.size, meeting, timeout_s=self.timeout_s)
            self._connections = connections
            try:
                with self.naming_lost("the start of the job"):
                    if connections.arrive(facts, remaining_s):
                        self._group = connections.make_default_group(backend)
                        return
            except BaseException as error:
                self.close(error)
                raise
            connections.drop()
            remaining_s = max(0.0, deadline - time.monotonic())
            meeting = reopen_meeting(meeting, timeout_s=remaining_s)

    @property
    def may_meet_again(self) -> bool:
        """Whether the ranks can meet again after a rank was lost and replaced.

        They cannot if a rank has left on its own, after an error.
        """
        meeting, connections = self._meeting, self._connections
        if meeting is None or meeting.generation is None or connections is None:
            return False
        return self.device.type == "cpu" and not connections.farewells(range(self.size))

    def meet_again(self, *, wait_s: float) -> None:
        """Break all connections and connect again, with the new process of a lost rank.

        All other ranks must call it. Groups created earlier are gone. Raises DeadlineError if no
        process replaces the lost rank within `wait_s`.
        """
        connections, self._connections = self._others(), None
        self._group = None
        self._shared_groups.clear()
        self._barriers = itertools.count()
        assert self._meeting is not None
        assert connections is not None
        connections.drop()
        self._connect(reopen_meeting(self._meeting, timeout_s=wait_s), wait_s)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of all ranks, for torch.distributed; None for a single rank."""
        return None if self._others() is None else self._group

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Create a group of some ranks with its own connections; return None on all other ranks.

        All ranks of the world must call it.
        """
        connections = self._others()
        if connections is None:
            return None
        with self.naming_lost(f"creating a group of {name_ranks(ranks)}"):
            return connections.new_group(ranks)

    def shared_group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """Return a group of these ranks, created on first use. All ranks must make these calls in
        the same order, from one thread."""
        key = tuple(ranks)
        if key not in self._shared_groups:
            self._shared_groups[key] = self.new_group(ranks)
        return self._shared_groups[key]

    def free_group(self, group: dist.ProcessGroup) -> None:
        """Close the connections of a group that has no pending calls."""
        if self._connections is not None:
            self._connections.free_group(group)

    def barrier(self, what: str, *, patient: bool = False) -> None:
        """Wait until all ranks have called this method; errors mention `what`.

        patient: whether to keep waiting as long as the other ranks are alive, since they may be
            busy for hours.

        Raises PeerLostError or DeadlineError, which name the ranks that are lost or missing.
        """
        connections = self._others()
        if connections is None:
            return
        store = connections.store
        number = next(self._barriers)
        deadline = time.monotonic() + self.timeout_s
        with self.naming_lost(what):
            store.set(f"barrier-{number}/{self.rank}", "")
            missing = connections.wait_for(f"barrier-{number}", min(_LOOK_S, self.timeout_s))
            while missing:
                self.require_present(what, missing)
                if not patient and time.monotonic() >= deadline:
                    raise DeadlineError(
                        f"{what}: {name_ranks(missing)} did not arrive within "
                        f"{self.timeout_s:g} s; all {self.size} ranks must make this call"
                    )
                missing = connections.wait_for(f"barrier-{number}", _LOOK_S)
            if number:
                # All have arrived, so nobody needs the keys of the previous barrier.
                store.delete_key(f"barrier-{number - 1}/{self.rank}")

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return a list of all ranks' data, in rank order, on every rank."""
        if not isinstance(data, bytes):
            raise ConfigError(f"all_gather_bytes needs bytes, got {type(data).__name__}")
        if self.size == 1:
            return [data]
        with self.naming_lost("gathering bytes of all ranks"):
            # In CPU memory, regardless of the caller's default device.
            length = torch.tensor([len(data)], device="cpu")
            lengths = [torch.zeros_like(length) for _ in range(self.size)]
            dist.all_gather(lengths, length, group=self.group)
            longest = max(int(length) for length in lengths)
            own = torch.zeros(longest, dtype=torch.uint8, device="cpu")
            if data:
                own[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            found = [torch.zeros_like(own) for _ in range(self.size)]
            if longest:
                dist.all_gather(found, own, group=self.group)
        parts = zip(found, lengths, strict=True)
        return [part[: int(length)].numpy().tobytes() for part, length in parts]

    def broadcast_bytes(self, data: bytes, source: int) -> bytes:
        """Return the data of rank `source` on every rank; other ranks' data is ignored."""
        if self.size == 1:
            return data
        length = torch.tensor([len(data)], device="cpu")
        self.broadcast([length], source)
        sent = torch.zeros(int(length), dtype=torch.uint8, device="cpu")
        if self.rank == source:
            sent = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.broadcast([sent], source)
        return sent.numpy().tobytes()

    def broadcast(self, tensors: Iterable[torch.Tensor], source: int = 0) -> None:
        """Overwrite every rank's tensors, of any shape and dtype, with those of rank `source`."""
        if self.size == 1:
            return
        with self.naming_lost(f"broadcast from rank {source}"), torch.no_grad():
            copies = []
            works = []
            for tensor in tensors:
                whole = tensor.detach().contiguous()
                flat = whole.reshape(-1).view(torch.uint8)  # gloo does not support every dtype
                works.append(dist.broadcast(flat, source, group=self.group, async_op=True))
                if whole.data_ptr() != tensor.data_ptr():
                    copies.append((tensor, whole))
            for work in works:
                work.wait()
            for tensor, whole in copies:
                tensor.copy_(whole)

    @property
    def is_open(self) -> bool:
        """Whether this rank is still connected to the others."""
        return self.size == 1 or self._connections is not None

    @property
    def store(self) -> AnsweringStore:
        """The key-value store that ranks share. A single rank has none."""
        connections = self._others()
        if connections is None:
            raise ConfigError("World.store: a single rank has no store")
        return connections.store

    def require_present(self, what: str, ranks: Iterable[int]) -> None:
        """Raise a PeerLostError that names the lost ranks, if any. Call it while waiting.

        If a heartbeat has stopped, takes up to 15 s, in case the rank is only busy.
        """
        patience_s = max(_SILENCE_S, min(_LONGEST_SILENCE_S, self.timeout_s / 4))
        self._check_absence(what, ranks, silence_s=patience_s)

    def lost_ranks(self) -> list[int]:
        """Return the ranks whose heartbeats have stopped. Takes a few seconds if there are any."""
        if self._connections is None:
            return []
        absence = self._connections.absence(range(self.size), silence_s=_SILENCE_S)
        return list(absence.lost)

    @contextlib.contextmanager
    def naming_lost(self, what: str) -> Iterator[None]:
        """Convert errors from torch.distributed to PeerLostError or DeadlineError.

        The converted errors name the lost or late ranks. what: describes the operation.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error).lower()
            is_late = any(word in text for word in _TIMEOUT_WORDS)
            is_lost = isinstance(error, _NETWORK_ERRORS) or any(
                word in text for word in _LOST_WORDS
            )
            if not is_late and not is_lost:
                raise
            self._check_absence(what, range(self.size), cause=error)
            if is_late:
                raise DeadlineError(
                    f"{what}: not all {self.size} ranks arrived within {self.timeout_s:g} s "
                    "although all are alive: every rank must make the same calls in the same order"
                ) from error
            raise PeerLostError(f"{what}: the connection to another rank broke: {error}") from error

    def _others(self) -> Connections | None:
        """Return the connections to the other ranks, or None if there is only one rank."""
        if self.size > 1 and self._connections is None:
            raise ConfigError(
                f"rank {self.rank} has left the other ranks, after an error or a call to close(): "
                "all ranks must join again, for example by restarting the job"
            )
        return self._connections

    def _check_absence(
        self,
        what: str,
        missing: Iterable[int],
        *,
        silence_s: float = _SILENCE_S,
        cause: Exception | None = None,
    ) -> None:
        """Raise PeerLostError if any of the ranks is lost."""
        if self._connections is None:
            return
        gone = self._connections.absence(missing, silence_s=silence_s)
        if gone:
            raise PeerLostError(f"{what}: {gone}") from cause

    def close(self, error: BaseException | None = None) -> None:
        """Disconnect from the other ranks; report `error` to them, if there is one. Idempotent."""
        connections, self._connections = self._connections, None
        self._group = None
        self._shared_groups.clear()
        if connections is not None:
            connections.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)
