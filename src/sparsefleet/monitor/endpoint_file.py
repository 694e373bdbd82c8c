"""Serves or pushes this process's metrics, and writes its address to a file for Prometheus."""

from __future__ import annotations

import atexit
import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.monitor.http_server import HttpServer, Request, Response, Route
from sparsefleet.monitor.otlp import OtlpPusher
from sparsefleet.monitor.registry import CONTENT_TYPE, PROCESS, Registry, expose
from sparsefleet.monitor.series import Sample

__all__ = [
    "TARGETS_MODE",
    "Target",
    "expect_reader",
    "labelled",
    "metrics_route",
    "read_targets",
    "report_metrics_if_asked",
    "serve_metrics",
    "serve_metrics_if_asked",
    "write_atomically",
    "write_targets",
]

_log = logging.getLogger("sparsefleet.monitor")
_OFF = ("", "off", "0")
TARGETS_MODE = 0o644
"""File mode. Prometheus usually runs as a different user and must be able to read the file."""


@dataclass(frozen=True, slots=True)
class Target:
    """A process whose metrics can be read, with its address."""

    role: str
    index: int
    address: str


class _Serving:
    """The server and pusher of this process's metrics; a forked child must start its own."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pid = 0
        self.server: HttpServer | None = None
        self.pusher: OtlpPusher | None = None
        self.pushing_pid = 0
        self.is_read = False


_serving = _Serving()


def metrics_route(registry: Registry = PROCESS) -> dict[str, Route]:
    """Return the route of `/metrics`."""

    def show(_: Request) -> Response:
        return Response(expose(registry.collect()).encode(), CONTENT_TYPE)

    return {"/metrics": show}


def serve_metrics(role: str, index: int, address: str, directory: str = "") -> HttpServer:
    """Serve this process's `/metrics` at HOST:PORT until the process exits. Call this only once.

    directory: where to write a file with the address, for the launcher and Prometheus.
    Raises ConfigError if the address cannot be used.
    """
    with _serving.lock:
        if _serving.server is None or _serving.pid != os.getpid():
            _serving.server = HttpServer(address, metrics_route())
            _serving.pid = os.getpid()
        server = _serving.server
    where = str(server.endpoint)
    _log.info("%s %d serves its metrics at http://%s/metrics", role, index, where)
    if directory:
        os.makedirs(directory, exist_ok=True)
        write_targets(os.path.join(directory, f"{role}-{index}.json"), [Target(role, index, where)])
    return server


def serve_metrics_if_asked(
    role: str, index: int, environ: Mapping[str, str] | None = None
) -> HttpServer | None:
    """Serve `/metrics` if SPARSEFLEET_METRICS is HOST:PORT.

    A failure is logged, and training continues.
    """
    environ = os.environ if environ is None else environ
    address = environ.get("SPARSEFLEET_METRICS", "")
    if address in _OFF:
        return None
    try:
        return serve_metrics(role, index, address, environ.get("SPARSEFLEET_METRICS_DIR", ""))
    except (ConfigError, OSError) as error:
        _log.warning(
            "cannot serve the metrics of %s %d: SPARSEFLEET_METRICS: %s", role, index, error
        )
        return None


def expect_reader() -> None:
    """Declare that something, such as Ray, reads the metrics of this process from `PROCESS`."""
    _serving.is_read = True


def report_metrics_if_asked(role: str, index: int) -> bool:
    """Serve metrics if SPARSEFLEET_METRICS is set; push them if SPARSEFLEET_OTLP is.

    Returns whether anything reads the metrics. Failures are logged and do not stop training.
    """
    is_served = serve_metrics_if_asked(role, index) is not None or _serving.is_read
    url = os.environ.get("SPARSEFLEET_OTLP", "")
    if url in _OFF:
        return is_served
    place = (("role", role), ("index", str(index)))
    with _serving.lock:
        if _serving.pusher is None or _serving.pushing_pid != os.getpid():
            try:
                _serving.pusher = OtlpPusher(url, lambda: labelled(PROCESS.collect(), place))
            except ConfigError as error:
                _log.warning(
                    "cannot push the metrics of %s %d: SPARSEFLEET_OTLP: %s", role, index, error
                )
                return is_served
            _serving.pushing_pid = os.getpid()
            atexit.register(_serving.pusher.close)
    return True


def labelled(samples: Iterable[Sample], labels: tuple[tuple[str, str], ...]) -> list[Sample]:
    """Return samples with extra labels before their own."""
    return [Sample(each.name, (*labels, *each.labels), each.value) for each in samples]


def write_targets(path: str | os.PathLike[str], targets: Sequence[Target]) -> None:
    """Write a service-discovery file for Prometheus' `file_sd_configs`, atomically."""
    groups = [
        {"targets": [target.address], "labels": {"role": target.role, "index": str(target.index)}}
        for target in targets
    ]
    write_atomically(path, json.dumps(groups, indent=1) + "\n", mode=TARGETS_MODE)


def write_atomically(path: str | os.PathLike[str], text: str, *, mode: int = 0o600) -> None:
    """Replace a file atomically; readers never see a partial file.

    mode: by default only its owner may read it.
    """
    folder, name = os.path.split(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(file.fileno(), mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_targets(directory: str | os.PathLike[str]) -> list[Target]:
    """Return the processes that have written their addresses to a directory.

    Files that are being removed and unrelated files are skipped.
    """
    found = []
    for path in sorted(Path(directory).glob("*-*.json")):
        try:
            for group in json.loads(path.read_text(encoding="utf-8")):
                labels = group["labels"]
                for address in group["targets"]:
                    parse_endpoint(address)
                    found.append(Target(labels["role"], int(labels["index"]), address))
        except (OSError, ValueError, LookupError, TypeError, ConfigError):
            continue
    return found
