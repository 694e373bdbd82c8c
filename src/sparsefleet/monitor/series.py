"""The catalogue of all metrics, and the documentation page that lists them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["CATALOGUE", "Sample", "Series", "histogram_samples", "reference_page", "sample"]

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with Prometheus naming: base units, and `_total` for counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One number of a metric; `name` may end with the suffix of a histogram part."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


_GROUPS: dict[str, list[Series]] = {
    "Every process": [
        Series("sparsefleet_build_info", "gauge", "1; the version is a label.", ("version",)),
        Series("sparsefleet_process_start_time_seconds", "gauge", "Start, in seconds since 1970."),
        Series("sparsefleet_process_cpu_seconds_total", "counter", "CPU time used."),
        Series("sparsefleet_process_resident_memory_bytes", "gauge", "Memory in RAM."),
        Series("sparsefleet_process_swap_bytes", "gauge", "Memory that was swapped out."),
        Series(
            "sparsefleet_process_major_faults_total",
            "counter",
            "Page faults that had to read from disk: swapping, or files being mapped.",
        ),
        Series("sparsefleet_process_threads", "gauge", "Threads."),
        Series("sparsefleet_process_open_fds", "gauge", "Open files and sockets."),
        Series(
            "sparsefleet_scrape_errors_total",
            "counter",
            "Sources of metrics that raised an error while they were read.",
        ),
    ],
    "Servers": [
        Series("sparsefleet_server_threads", "gauge", "Threads that execute requests."),
        Series(
            "sparsefleet_server_busy_threads",
            "gauge",
            "Threads executing a request now; requests queue while all are busy.",
        ),
        Series("sparsefleet_server_connections", "gauge", "Open connections."),
        Series(
            "sparsefleet_server_unproven_connections",
            "gauge",
            "Connections that have not proven the job key yet.",
        ),
        Series("sparsefleet_server_clients", "gauge", "Clients with a session."),
        Series("sparsefleet_server_connections_total", "counter", "Connections accepted."),
        Series(
            "sparsefleet_server_lane_connections_total",
            "counter",
            "Connections accepted over shared memory, from this host.",
        ),
        Series(
            "sparsefleet_server_clients_lost_total",
            "counter",
            "Clients lost because they were silent.",
        ),
        Series(
            "sparsefleet_server_strangers_refused_total",
            "counter",
            "Connections that could not prove the job key.",
        ),
        Series(
            "sparsefleet_server_unproven_dropped_total",
            "counter",
            "Unproven connections dropped for newer ones.",
        ),
        Series("sparsefleet_server_protocol_errors_total", "counter", "Malformed requests."),
        Series("sparsefleet_server_requests_total", "counter", "Requests, by kind.", ("type",)),
        Series(
            "sparsefleet_server_request_seconds",
            "histogram",
            "Time from a request's arrival to its reply: pull, push, push_round (which includes "
            "waiting for the other workers) and other.",
            ("type",),
        ),
        Series(
            "sparsefleet_server_received_bytes_total",
            "counter",
            "Bytes received, by transport: socket, or shared_memory from workers on this host.",
            ("transport",),
        ),
        Series(
            "sparsefleet_server_sent_bytes_total",
            "counter",
            "Bytes sent, by transport.",
            ("transport",),
        ),
        Series("sparsefleet_server_tls_key_updates_total", "counter", "TLS key updates."),
    ],
    "Log of durable servers": [
        Series("sparsefleet_log_bytes_total", "counter", "Bytes written to the log."),
        Series("sparsefleet_log_records_total", "counter", "Records written to the log."),
        Series("sparsefleet_log_append_seconds", "histogram", "Time to write a record to the log."),
        Series(
            "sparsefleet_log_sync_seconds",
            "histogram",
            "Time to sync the log to disk; durability 'disk' only.",
        ),
        Series("sparsefleet_log_lag_records", "gauge", "Records that are not on the disk yet."),
        Series("sparsefleet_log_replies_waiting", "gauge", "Replies waiting for the disk."),
        Series(
            "sparsefleet_log_disk_full",
            "gauge",
            "1 while the log cannot be written because the disk is full; changes wait.",
        ),
        Series("sparsefleet_log_snapshots_total", "counter", "Snapshots written."),
        Series("sparsefleet_log_snapshot_seconds", "gauge", "Duration of the last snapshot."),
        Series("sparsefleet_log_snapshot_bytes", "gauge", "Size of the last snapshot."),
        Series("sparsefleet_log_recovery_seconds", "gauge", "Duration of the recovery at start."),
        Series("sparsefleet_log_replayed_records", "gauge", "Records replayed at start."),
        Series("sparsefleet_log_torn_bytes", "gauge", "Bytes cut off the log at start."),
        Series(
            "sparsefleet_log_duplicates_dropped_total",
            "counter",
            "Requests sent again that were answered from memory.",
        ),
    ],
    "Tables, per server": [
        Series("sparsefleet_table_rows", "gauge", "Rows on this server.", ("table",)),
        Series(
            "sparsefleet_table_candidates",
            "gauge",
            "Keys counted for admission that have no row yet.",
            ("table",),
        ),
        Series("sparsefleet_table_memory_bytes", "gauge", "Memory of the table.", ("table",)),
        Series(
            "sparsefleet_table_payload_bytes",
            "gauge",
            "Bytes of keys, values and optimizer state; the rest of the memory is overhead.",
            ("table",),
        ),
        Series("sparsefleet_table_elements", "gauge", "Elements of a dense table.", ("table",)),
        Series("sparsefleet_table_pulled_rows_total", "counter", "Rows read.", ("table",)),
        Series("sparsefleet_table_pushed_rows_total", "counter", "Rows updated.", ("table",)),
        Series(
            "sparsefleet_table_created_rows_total",
            "counter",
            "Rows created, which are admissions if the table has an admission rule.",
            ("table",),
        ),
        Series("sparsefleet_table_evicted_rows_total", "counter", "Rows evicted.", ("table",)),
        Series(
            "sparsefleet_table_rejected_gradients_total",
            "counter",
            "Row gradients skipped because they were NaN or infinite.",
            ("table",),
        ),
        Series(
            "sparsefleet_table_not_admitted_total",
            "counter",
            "Row gradients skipped because their key was not admitted yet.",
            ("table",),
        ),
        Series("sparsefleet_table_learning_rate", "gauge", "Learning rate.", ("table",)),
        Series("sparsefleet_table_version", "gauge", "Pushes that changed the table.", ("table",)),
        Series(
            "sparsefleet_table_gradient_squares_total",
            "counter",
            "Sum of squared norms of a sample of row gradients; divide by the samples.",
            ("table",),
        ),
        Series(
            "sparsefleet_table_gradient_samples_total",
            "counter",
            "Row gradients in that sample.",
            ("table",),
        ),
        Series(
            "sparsefleet_table_row_squares_total",
            "counter",
            "Sum of squared norms of a sample of the rows pulled; divide by the samples.",
            ("table",),
        ),
        Series(
            "sparsefleet_table_row_samples_total", "counter", "Rows in that sample.", ("table",)
        ),
    ],
    "Workers": [
        Series("sparsefleet_worker_examples_total", "counter", "Examples trained on."),
        Series("sparsefleet_worker_steps_total", "counter", "Mini-batches trained on."),
        Series(
            "sparsefleet_worker_skipped_steps_total",
            "counter",
            "Mini-batches skipped because their loss was not finite.",
        ),
        Series(
            "sparsefleet_worker_loss_total",
            "counter",
            "Sum of the losses of all examples, each computed before learning from it; divide by "
            "the examples. Custom loops report it only if they call `step.backward(loss)`.",
        ),
        Series(
            "sparsefleet_worker_epoch",
            "gauge",
            "The current epoch, starting at 1; 0 before the first.",
        ),
        Series("sparsefleet_worker_epochs", "gauge", "Epochs to train."),
        Series(
            "sparsefleet_worker_activity_seconds_total",
            "counter",
            "Time of training threads by activity: data, pull, compute, push, wait, other. In a "
            "custom loop, everything between two steps is other.",
            ("activity",),
        ),
        Series("sparsefleet_worker_threads", "gauge", "Training threads."),
        Series("sparsefleet_worker_pushes_total", "counter", "Pushes that the store applied."),
        Series(
            "sparsefleet_worker_merged_gradients_total", "counter", "Mini-batches in those pushes."
        ),
        Series("sparsefleet_worker_pull_seconds_total", "counter", "Time in pulls."),
        Series("sparsefleet_worker_push_seconds_total", "counter", "Time in pushes."),
        Series(
            "sparsefleet_worker_staleness_steps",
            "histogram",
            "In each step, how many of this worker's earlier mini-batches the dense values did "
            "not include yet.",
        ),
        Series(
            "sparsefleet_worker_queue_depth",
            "gauge",
            "Mini-batches handed over but not yet applied.",
        ),
        Series(
            "sparsefleet_worker_metric",
            "gauge",
            "A metric on the training data (auc, gauc, ...) over recent batches.",
            ("metric",),
        ),
        Series(
            "sparsefleet_validation_metric",
            "gauge",
            "A metric on the validation data after the last epoch.",
            ("metric",),
        ),
        Series("sparsefleet_worker_lookups_total", "counter", "Ids looked up.", ("table",)),
        Series(
            "sparsefleet_worker_unique_lookups_total",
            "counter",
            "Ids looked up, counting each id once per mini-batch; these ids are pulled.",
            ("table",),
        ),
        Series(
            "sparsefleet_worker_hot_key_ratio",
            "gauge",
            "Share of the most frequent id in the lookups of a recent mini-batch.",
            ("table",),
        ),
        Series("sparsefleet_worker_lost_workers_total", "counter", "Workers lost so far."),
        Series("sparsefleet_worker_sent_bytes_total", "counter", "Bytes sent to other workers."),
    ],
    "Readers, per worker": [
        Series("sparsefleet_reader_lines_total", "counter", "Lines read."),
        Series("sparsefleet_reader_records_total", "counter", "Records read."),
        Series("sparsefleet_reader_bytes_total", "counter", "Bytes read."),
        Series("sparsefleet_reader_bad_lines_total", "counter", "Lines skipped as malformed."),
        Series("sparsefleet_reader_threads", "gauge", "Reading threads."),
        Series(
            "sparsefleet_reader_blocked_seconds_total",
            "counter",
            "Time that readers waited because the batch queue was full.",
        ),
        Series(
            "sparsefleet_reader_starved_seconds_total",
            "counter",
            "Time that training waited because the batch queue was empty.",
        ),
    ],
    "Checkpoints, of worker 0": [
        Series("sparsefleet_checkpoints_total", "counter", "Checkpoints committed."),
        Series("sparsefleet_checkpoint_failures_total", "counter", "Checkpoints that failed."),
        Series("sparsefleet_checkpoint_seconds", "gauge", "Duration of the last checkpoint."),
        Series(
            "sparsefleet_checkpoint_time_seconds",
            "gauge",
            "When the last checkpoint was committed, in seconds since 1970.",
        ),
        Series("sparsefleet_checkpoint_step", "gauge", "Step of the last checkpoint."),
        Series(
            "sparsefleet_checkpoint_pause_seconds_total",
            "counter",
            "Time that training threads paused for saves; on every worker.",
        ),
    ],
    "Launcher": [
        Series(
            "sparsefleet_job_process_up",
            "gauge",
            "1 if the process runs and answers, 0 if not.",
            ("role", "index"),
        ),
        Series(
            "sparsefleet_job_process_starts_total",
            "counter",
            "How often the process was started; the first start counts.",
            ("role", "index"),
        ),
        Series(
            "sparsefleet_job_scrape_seconds",
            "gauge",
            "Duration of the last reading of a process's metrics.",
            ("role", "index"),
        ),
        Series("sparsefleet_job_examples_per_second", "gauge", "Examples per second, all workers."),
        Series(
            "sparsefleet_job_shard_skew_ratio",
            "gauge",
            "Rows recently pulled from the busiest server, divided by the mean over all servers.",
            ("table",),
        ),
        Series(
            "sparsefleet_job_diagnosis",
            "gauge",
            "1 while a rule of docs/debugging.md holds for a process or table.",
            ("rule", "subject"),
        ),
    ],
}

CATALOGUE: dict[str, Series] = {
    series.name: series for group in _GROUPS.values() for series in group
}
"""Every metric by name."""


def sample(name: str, value: float, **labels: str) -> Sample:
    """Return a sample of a metric in the catalogue; the labels must match the metric's.

    >>> sample("sparsefleet_table_rows", 3, table="ads")
    Sample(name='sparsefleet_table_rows', labels=(('table', 'ads'),), value=3.0)
    """
    series = CATALOGUE[name]
    if series.kind == "histogram":
        raise ValueError(f"{name} is a histogram: use histogram_samples")
    return Sample(name, _checked(series, labels), float(value))


def histogram_samples(
    name: str, buckets: Mapping[float, float], total: float, sum_: float, **labels: str
) -> list[Sample]:
    """Return the parts of a histogram; `buckets` maps upper bounds to cumulative counts.

    >>> parts = histogram_samples("sparsefleet_worker_staleness_steps", {0: 4, 2: 5}, 6, 9.0)
    >>> [(part.name[-6:], dict(part.labels).get("le"), part.value) for part in parts]
    [('bucket', '0', 4.0), ('bucket', '2', 5.0), ('bucket', '+Inf', 6.0), ('ps_sum', None, 9.0), \
('_count', None, 6.0)]
    """
    given = _checked(CATALOGUE[name], labels)
    parts = [
        Sample(f"{name}_bucket", (*given, ("le", f"{bound:g}")), float(count))
        for bound, count in sorted(buckets.items())
    ]
    parts.append(Sample(f"{name}_bucket", (*given, ("le", "+Inf")), float(total)))
    parts.append(Sample(f"{name}_sum", given, float(sum_)))
    parts.append(Sample(f"{name}_count", given, float(total)))
    return parts


def _checked(series: Series, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    if set(labels) != set(series.labels):
        raise ValueError(f"{series.name} must have the labels {series.labels}, got {tuple(labels)}")
    return tuple((name, labels[name]) for name in series.labels)


_HEAD = """\
# Metrics reference

This page lists all metrics of servers, workers and launchers. It is generated from
`src/sparsefleet/monitor/series.py` by `python scripts/print_metrics_reference.py`.
[monitoring.md](monitoring.md) shows how to switch them on, scrape them and view them. The service
(`sparsefleet serve`) has its own metrics ([serving.md](serving.md)).

Names follow Prometheus' conventions: base units, and `_total` for counters. Ids are never labels.
The metrics that a launcher gathers have the labels `role` (server, worker or launcher) and `index`;
a Prometheus that scrapes each process gets them from the service-discovery file.
"""


def reference_page() -> str:
    """Return the text of docs/metrics_reference.md."""
    lines = [_HEAD]
    for title, group in _GROUPS.items():
        lines += [f"## {title}", "", *(_entry(series) for series in group), ""]
    return "\n".join(lines)


def _entry(series: Series) -> str:
    labels = " and ".join(f"`{label}`" for label in series.labels)
    by = f", by {labels}" if labels else ""
    text = f"* `{series.name}` ({series.kind}{by}): {series.help}"
    return textwrap.fill(
        text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def names_of(samples: Iterable[Sample]) -> set[str]:
    """Return the metrics that these samples belong to, without the suffixes of histograms."""
    return {metric_of(each.name) for each in samples}


def metric_of(name: str) -> str:
    """Return the metric that a sample's name belongs to.

    >>> metric_of("sparsefleet_log_sync_seconds_bucket"), metric_of("sparsefleet_table_rows")
    ('sparsefleet_log_sync_seconds', 'sparsefleet_table_rows')
    """
    if name in CATALOGUE:
        return name
    return name.rpartition("_")[0]
