"""How the workers of a job meet: barriers and notes kept by the first server."""

from __future__ import annotations

from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.store import Store

__all__ = ["Meeting"]

_CHUNK_BYTES = 60_000  # a note holds 64 KiB


class Meeting:
    """The workers of one job, met through their store.

    All workers must make the same calls in the same order; each call is numbered, so that a
    worker that is one ahead is not mixed up with one that is behind. `name` keeps the meetings of
    one training apart from those of another on the same servers.

    >>> from sparsefleet.store import LocalStore
    >>> Meeting(LocalStore(), RoleInfo(kind="local")).all_gather(b"mine")
    [b'mine']
    """

    def __init__(
        self, store: Store, role: RoleInfo, *, name: str = "job", wait_s: float = 600.0
    ) -> None:
        self._store = store
        self._name = name
        self._role = role
        self._wait_s = wait_s
        self._count = 0

    @property
    def is_alone(self) -> bool:
        return self._role.worker_num == 1

    def barrier(self) -> None:
        """Returns when every worker has called it; raises after `wait_s`, saying who came."""
        self._count += 1
        if not self.is_alone:
            name = f"fleet/{self._name}/barrier/{self._count}"
            self._store.barrier(name, self._role.worker_num, timeout_s=self._wait_s)

    def all_gather(self, data: bytes) -> list[bytes]:
        """What every worker gave, by rank, on every worker."""
        if not isinstance(data, bytes):
            raise ConfigError(f"all_gather takes bytes, got {type(data).__name__}")
        self._count += 1
        if self.is_alone:
            return [data]
        prefix = f"fleet/{self._name}/gather/{self._count}"
        names = self._put(f"{prefix}/{self._role.index}", data)
        gathered = [
            data if rank == self._role.index else self._get(f"{prefix}/{rank}")
            for rank in range(self._role.worker_num)
        ]
        # Notes may go only when everybody has read them.
        self._store.barrier(prefix, self._role.worker_num, timeout_s=self._wait_s)
        for name in names:
            self._store.delete_note(name)
        return gathered

    def _put(self, name: str, data: bytes) -> list[str]:
        chunks = [data[i : i + _CHUNK_BYTES] for i in range(0, len(data), _CHUNK_BYTES)]
        names = [f"{name}/{index}" for index in range(len(chunks))]
        for chunk_name, chunk in zip(names, chunks, strict=True):
            self._store.put_note(chunk_name, chunk)
        self._store.put_note(name, str(len(chunks)).encode())
        return [*names, name]

    def _get(self, name: str) -> bytes:
        count = int(self._store.get_note(name, wait=True, timeout_s=self._wait_s))
        return b"".join(self._store.get_note(f"{name}/{index}") for index in range(count))
