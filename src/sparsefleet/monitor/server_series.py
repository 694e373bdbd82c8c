"""Converts counters to metrics: a server's, named by the native core, and those of lookups."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from sparsefleet.monitor.series import Sample, histogram_samples, sample

__all__ = ["LOOKUPS", "LookupCounts", "server_samples"]

_SERVER = {
    "server.threads": "sparsefleet_server_threads",
    "server.busy_threads": "sparsefleet_server_busy_threads",
    "server.connections": "sparsefleet_server_connections",
    "server.connections_unproven": "sparsefleet_server_unproven_connections",
    "server.clients": "sparsefleet_server_clients",
    "server.connections_total": "sparsefleet_server_connections_total",
    "server.lane_connections_total": "sparsefleet_server_lane_connections_total",
    "server.clients_lost": "sparsefleet_server_clients_lost_total",
    "server.strangers_refused": "sparsefleet_server_strangers_refused_total",
    "server.unproven_dropped": "sparsefleet_server_unproven_dropped_total",
    "server.protocol_errors": "sparsefleet_server_protocol_errors_total",
    "server.tls_key_updates": "sparsefleet_server_tls_key_updates_total",
    "log.bytes": "sparsefleet_log_bytes_total",
    "log.records": "sparsefleet_log_records_total",
    "log.lag_records": "sparsefleet_log_lag_records",
    "log.disk_full": "sparsefleet_log_disk_full",
    "log.replies_waiting": "sparsefleet_log_replies_waiting",
    "log.snapshots": "sparsefleet_log_snapshots_total",
    "log.snapshot_s": "sparsefleet_log_snapshot_seconds",
    "log.snapshot_bytes": "sparsefleet_log_snapshot_bytes",
    "log.recovery_s": "sparsefleet_log_recovery_seconds",
    "log.replayed_records": "sparsefleet_log_replayed_records",
    "log.torn_bytes": "sparsefleet_log_torn_bytes",
    "log.duplicates_dropped": "sparsefleet_log_duplicates_dropped_total",
}
_TRANSPORTS = {"socket": "socket", "lane": "shared_memory"}
_TRAFFIC = {
    f"server.{name}_bytes_{way}": (f"sparsefleet_server_{verb}_bytes_total", transport)
    for name, transport in _TRANSPORTS.items()
    for way, verb in (("in", "received"), ("out", "sent"))
}
_TABLE = {
    "rows": "sparsefleet_table_rows",
    "candidates": "sparsefleet_table_candidates",
    "memory_bytes": "sparsefleet_table_memory_bytes",
    "payload_bytes": "sparsefleet_table_payload_bytes",
    "elements": "sparsefleet_table_elements",
    "rows_pulled": "sparsefleet_table_pulled_rows_total",
    "rows_pushed": "sparsefleet_table_pushed_rows_total",
    "rows_created": "sparsefleet_table_created_rows_total",
    "rows_evicted": "sparsefleet_table_evicted_rows_total",
    "rejected_non_finite": "sparsefleet_table_rejected_gradients_total",
    "not_admitted": "sparsefleet_table_not_admitted_total",
    "learning_rate": "sparsefleet_table_learning_rate",
    "version": "sparsefleet_table_version",
    "gradient_squares": "sparsefleet_table_gradient_squares_total",
    "gradients_sampled": "sparsefleet_table_gradient_samples_total",
    "row_squares": "sparsefleet_table_row_squares_total",
    "rows_sampled": "sparsefleet_table_row_samples_total",
}
_REQUESTS = "server.requests."
_HISTOGRAMS = {
    **{
        f"server.request_seconds.{kind}": ("sparsefleet_server_request_seconds", {"type": kind})
        for kind in ("pull", "push", "push_round", "other")
    },
    "log.append_seconds": ("sparsefleet_log_append_seconds", {}),
    "log.sync_seconds": ("sparsefleet_log_sync_seconds", {}),
}


def server_samples(stats: Mapping[str, float]) -> Iterator[Sample]:
    """Yield a server's metrics from the result of `_core.Server.stats()` or a store's `stats`.

    >>> list(server_samples({"table.ads.rows": 3.0, "server.requests.pull": 2.0}))
    [Sample(name='sparsefleet_table_rows', labels=(('table', 'ads'),), value=3.0), \
Sample(name='sparsefleet_server_requests_total', labels=(('type', 'pull'),), value=2.0)]
    """
    histograms: dict[str, dict[float, float]] = {}
    for name, value in stats.items():
        if ".le." in name and not name.startswith("table."):
            histogram, _, bound = name.partition(".le.")
            histograms.setdefault(histogram, {})[float(bound)] = value
        elif name in _SERVER:
            yield sample(_SERVER[name], value)
        elif name in _TRAFFIC:
            metric, transport = _TRAFFIC[name]
            yield sample(metric, value, transport=transport)
        elif name.startswith(_REQUESTS):
            kind = name.removeprefix(_REQUESTS)
            yield sample("sparsefleet_server_requests_total", value, type=kind)
        elif name.startswith("table."):
            table, _, figure = name.removeprefix("table.").rpartition(".")
            if figure in _TABLE:
                yield sample(_TABLE[figure], value, table=table)
    for histogram, buckets in histograms.items():
        if histogram in _HISTOGRAMS:
            metric, labels = _HISTOGRAMS[histogram]
            total = buckets.pop(math.inf, 0.0)
            sum_s = stats.get(f"{histogram}.sum", 0.0)
            yield from histogram_samples(metric, buckets, total, sum_s, **labels)


_EVERY = (
    64  # mini-batches between checks of the most frequent id; a check costs a pass over the ids
)

LookupCount = tuple[str, int, int, Callable[[], float]]
"""A table, its numbers of ids and distinct ids, and a function that returns the share of lookups
that go to the most frequent id.
"""


class LookupCounts:
    """Per-table counts of ids and of distinct ids, and the share of the most frequent id.

    Thread-safe.

    >>> counts = LookupCounts()
    >>> counts.add([("ads", 3, 2, lambda: 2 / 3)])
    >>> [round(each.value, 2) for each in counts.samples()]
    [3.0, 2.0, 0.67]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[str, list[float]] = {}

    def add(self, tables: Iterable[LookupCount]) -> None:
        """Count the lookups of one mini-batch."""
        due = []
        with self._lock:
            for table, num_ids, num_unique, hottest in tables:
                counted = self._tables.get(table)
                if counted is None:
                    counted = self._tables[table] = [0.0, 0.0, 0.0, 0.0]
                if counted[3] % _EVERY == 0 and num_ids:
                    due.append((counted, hottest))
                counted[0] += num_ids
                counted[1] += num_unique
                counted[3] += 1
        for counted, hottest in due:
            counted[2] = hottest()

    def samples(self) -> Iterator[Sample]:
        """Yield the counts of each table as metrics."""
        with self._lock:
            tables = {table: list(counted) for table, counted in self._tables.items()}
        for table, (ids, unique, hot, _) in tables.items():
            yield sample("sparsefleet_worker_lookups_total", ids, table=table)
            yield sample("sparsefleet_worker_unique_lookups_total", unique, table=table)
            yield sample("sparsefleet_worker_hot_key_ratio", hot, table=table)


LOOKUPS = LookupCounts()
"""The lookup counts of this process."""
