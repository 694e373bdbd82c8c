"""The costs of operations on a machine: CPU seconds per request, key and byte."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparsefleet.errors import ConfigError

__all__ = [
    "KEY_BYTES",
    "Linear",
    "MachineCosts",
    "NEAR_BYTES",
    "OPERATIONS",
    "OperationCost",
    "TRANSPORTS",
    "WorkerCosts",
    "known_machines",
    "load_machine",
    "save_machine",
]

KEY_BYTES = 8
NEAR_BYTES = 1 << 20
"""Bytes of a request that the cache of a core can hold, about the L2 cache of a server processor.
The bytes beyond this come from a shared cache or from memory, and cost more.
"""
OPERATIONS = ("pull", "push", "round", "dense", "changes", "barrier")
"""The operations. push: send gradients to the optimizer. round: a push in which all workers take
part. dense: send a gradient for all dense parameters and receive their values. changes: fetch rows
that other workers have changed, as geo does.
"""
TRANSPORTS = ("tls", "host")
"""The transports. tls: over a network. host: shared memory, for processes on one machine."""
_FOLDER = Path(__file__).parent / "machines"
_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Linear:
    """CPU seconds as a function of requests, keys and bytes.

    >>> Linear(1e-3, 1e-6, 1e-9).of(keys=1000, size=1e6)
    0.003
    """

    request_s: float = 0.0
    key_s: float = 0.0
    byte_s: float = 0.0
    far_byte_s: float = 0.0
    """Added seconds per byte beyond `NEAR_BYTES`."""

    def of(self, *, requests: float = 1.0, keys: float = 0.0, size: float = 0.0) -> float:
        """Return the seconds for `requests` requests with `keys` keys and `size` bytes in total."""
        return self.request_s * requests + self.key_s * keys + self.size_s(size)

    def size_s(self, size: float) -> float:
        """Return the seconds for the bytes alone."""
        return self.byte_s * size + self.far_byte_s * max(0.0, size - NEAR_BYTES)


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationCost:
    """The costs of one kind of request, for the client and for the server.

    Bytes are the sum of both directions.
    """

    client: Linear
    server: Linear


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerCosts:
    """The cost of a training step in a worker, excluding its requests."""

    step_s: float
    """Seconds per step, for Python, torch's dispatch and the engine."""
    id_s: float
    """Seconds per looked-up id, for deduplication, gathering and the gradient of the lookup."""
    float_s: float
    """Seconds per float in a looked-up row, for copies, sums and the gradient."""
    flops: float
    """Floating-point operations per second that one core achieves in a model's layers."""
    variation: float
    """Standard deviation of the duration of a step, as a fraction of its mean."""

    def compute_s(self, *, batch: int, ids: float, floats: float, dense: float) -> float:
        """Return the seconds for a step that looks up `ids` rows with `floats` floats in total.

        Each of the `dense` parameters takes part in three products per example, with two operations
        each.
        """
        rows_s = self.id_s * ids + self.float_s * floats
        return self.step_s + rows_s + 6.0 * dense * batch / self.flops


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineCosts:
    """The measured costs of one kind of machine."""

    name: str
    cpu: str
    """The processor, as named by the system."""
    cores: int
    """Number of cores of the measured machine."""
    worker: WorkerCosts
    operations: Mapping[str, Mapping[str, OperationCost]]
    """The cost of each operation with several servers, by transport and then by operation."""
    single: Mapping[str, Mapping[str, OperationCost]]
    """The cost of each operation with a single server, whose client neither sorts keys nor copies
    rows.
    """
    latency_s: Mapping[str, float]
    """Seconds a message takes to reach an idle process, by transport, without network cards."""
    mode_step_s: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """CPU seconds per step that a mode adds in the worker, excluding its requests."""
    mode_server: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """CPU time that keys and bytes take in the servers, relative to that of `operations` or
    `single`, by mode; 1 for modes that are not listed.
    """

    def of(self, transport: str, servers: int) -> Mapping[str, OperationCost]:
        """Return the cost of each operation for a job with this number of servers."""
        return (self.single if servers == 1 else self.operations)[transport]


def known_machines() -> list[str]:
    """Return the names of the reference machines.

    >>> "amd-epyc" in known_machines()
    True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.json"))


def load_machine(name_or_file: str | os.PathLike[str]) -> MachineCosts:
    """Return a reference machine by name, or a machine from a file.

    `sparsefleet plan --calibrate` writes such files.

    Raises a ConfigError that lists the known names if there is no such machine.
    """
    text = os.fspath(name_or_file)
    path = _FOLDER / f"{text}.json" if text in known_machines() else Path(text)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"machine {text!r} is neither a file nor one of {', '.join(known_machines())}: write a "
            f"file with `sparsefleet plan --calibrate {text}.json`"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"machine file {text!r} cannot be read: {error}") from error
    try:
        return _machine_of(found)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"machine file {text!r} was not written by this version of `sparsefleet plan "
            f"--calibrate` ({type(error).__name__}: {error}); calibrate again"
        ) from error


def save_machine(machine: MachineCosts, path: str | os.PathLike[str]) -> None:
    """Write a machine to a file for `load_machine`."""
    text = json.dumps({"format": _FORMAT, **dataclasses.asdict(machine)}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")


def _machine_of(found: Mapping[str, Any]) -> MachineCosts:
    if found["format"] != _FORMAT:
        raise ValueError(f"format {found['format']}, expected {_FORMAT}")
    operations, single = (
        {
            transport: {
                name: OperationCost(
                    client=Linear(**found[which][transport][name]["client"]),
                    server=Linear(**found[which][transport][name]["server"]),
                )
                for name in OPERATIONS
            }
            for transport in TRANSPORTS
        }
        for which in ("operations", "single")
    )
    return MachineCosts(
        name=str(found["name"]),
        cpu=str(found["cpu"]),
        cores=int(found["cores"]),
        worker=WorkerCosts(**found["worker"]),
        operations=operations,
        single=single,
        latency_s={name: float(found["latency_s"][name]) for name in TRANSPORTS},
        mode_step_s={name: float(value) for name, value in found["mode_step_s"].items()},
        mode_server={name: float(value) for name, value in found["mode_server"].items()},
    )
