"""The properties of a training job that determine its cost: lookups, computation, traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative, require_positive
from sparsefleet.planning.simulation import Crowding

__all__ = [
    "FleetShape",
    "JobShape",
    "MODES",
    "gbit",
]

MODES = ("sync", "half_async", "async", "hybrid", "geo")
"""The modes that use servers."""
_DENSE_BLOCK = 8192  # DenseSpec.min_block_size
_BITS = 8


def gbit(number: float) -> float:
    """Convert Gbit/s to bytes per second.

    >>> gbit(10)
    1250000000.0
    """
    return number * 1e9 / _BITS


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShape:
    """The work in one training step of one worker thread.

    >>> job = JobShape(batch=100, ids=2600, keys=1000, row_floats=16, dense=5000, compute_s=0.01)
    >>> round(job.keys_of(4))
    2297
    """

    batch: int
    """Examples in a mini-batch."""
    ids: float
    """Ids that a mini-batch looks up, over all tables."""
    keys: float
    """Number of distinct ids in a mini-batch; the same number of rows is pulled and pushed."""
    row_floats: float
    """Floats per row: the width of the table, or the mean over several."""
    dense: float
    """Number of parameters outside the tables."""
    compute_s: float
    """CPU seconds per step in the worker, excluding its requests."""
    growth: float = 0.6
    """The number of distinct keys in n mini-batches is `keys * n ** growth` (Heaps' law)."""
    rows: float = math.inf
    """Total number of rows in all tables. It limits the number of distinct keys."""
    merges_freely: bool = False
    """Whether all optimizers are plain SGD, in which case async may merge mini-batches."""
    variation: float = 0.05
    """Standard deviation of the duration of a step, as a fraction of its mean."""
    exchange_steps: int | None = None
    """Mini-batches between two geo exchanges; None means the default of `modes.GeoConfig`."""
    crowding: Crowding = field(default_factory=Crowding)
    """How much slower a step is when other work runs on its machine."""

    def __post_init__(self) -> None:
        require_int(self, "batch", 1, 10**7)
        for name in ("ids", "keys", "row_floats", "compute_s"):
            require_positive(self, name)
        require(self.rows >= self.keys, self, "rows", f"at least keys, {self.keys:g}")
        for name in ("dense", "growth", "variation"):
            require_not_negative(self, name)
        if self.exchange_steps is not None:
            require_int(self, "exchange_steps", 1, 2**31 - 1)
        require(self.growth <= 1, self, "growth", "<= 1")
        if self.keys > self.ids * (1 + 1e-9):
            raise ConfigError(
                f"JobShape.keys counts distinct ids, so keys must be <= ids ({self.ids:g}), got "
                f"{self.keys:g}"
            )

    def keys_of(self, steps: float) -> float:
        """Return the number of distinct keys in `steps` consecutive mini-batches."""
        return float(min(self.keys * steps, self.keys * steps**self.growth, self.rows))

    def dense_parts(self, servers: int) -> int:
        """Return the number of servers that hold a part of the dense parameters."""
        return int(min(max(self.dense // _DENSE_BLOCK, 1), servers)) if self.dense else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetShape:
    """The number of processes, and the machines that they run on."""

    workers: int
    """Processes that train, with one thread each."""
    servers: int
    network_bytes_per_s: float | None = None
    """Bandwidth of each machine's network card, per direction. None means that all processes share
    one machine.
    """
    latency_s: float = 50e-6
    """One-way latency between two machines."""
    worker_cores: int = 1
    """Workers per machine, each with its own core. If all processes share one machine, the number
    of its cores.
    """
    server_cores: int = 8
    """Cores of a server's machine. If all processes share one machine, the threads per server."""
    busy_cores: float = 0.0
    """If all processes share one machine, the cores that unrelated processes keep busy."""

    def __post_init__(self) -> None:
        require_int(self, "workers", 1, 1_000_000)
        require_int(self, "servers", 1, 100_000)
        require_int(self, "worker_cores", 1, 4096)
        require_int(self, "server_cores", 1, 4096)
        require_not_negative(self, "latency_s")
        require_not_negative(self, "busy_cores")
        require(self.busy_cores < self.worker_cores, self, "busy_cores", "< worker_cores")
        if self.network_bytes_per_s is not None:
            require_positive(self, "network_bytes_per_s")

    @property
    def transport(self) -> str:
        """Return the transport between workers and servers."""
        return "host" if self.network_bytes_per_s is None else "tls"
