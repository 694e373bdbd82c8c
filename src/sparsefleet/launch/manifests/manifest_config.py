"""The configuration of a job that a scheduler runs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal, get_args

from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int
from sparsefleet.launch.launch_config import DurabilityName, TransportName

__all__ = ["ManifestConfig", "ManifestKind", "default_name", "memory_bytes"]

ManifestKind = Literal["slurm", "jobset", "rayjob", "trainjob"]

_MAX_TASKS = 2**16
_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_NAME = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_MAX_NAME = 40  # pods of a JobSet add -servers-0-65535 and a suffix, and have at most 63


def memory_bytes(text: str) -> int:
    """Return a size such as 8GiB, 8Gi, 8G or 512M in bytes; units are powers of 1024.

    >>> memory_bytes("8GiB") == memory_bytes("8G") == 8 << 30
    True
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([kmgt])(?:i?b)?", text.strip().lower())
    found = found or re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?) ?([kmgt])i", text.strip().lower())
    if found is None or float(found[1]) <= 0:
        raise ConfigError(f"a memory size must look like 8GiB or 512M, got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def default_name(script: str) -> str:
    """Return a job name derived from its script. It starts with a letter, as Kubernetes requires.

    >>> default_name("ctr/Train_DNN.py"), default_name("2024_ads.py"), default_name("ctr.train")
    ('train-dnn', 'job-2024-ads', 'train')
    """
    base = os.path.basename(script)
    stem = base.removesuffix(".py") if base.endswith(".py") else base.rpartition(".")[2]
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")
    if name[:1].isdigit():
        name = f"job-{name}"
    return name[:_MAX_NAME].strip("-") or "train"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskShape:
    """The resources of each server or worker."""

    count: int
    cpus: int = 4
    memory: int = 8 << 30
    """Memory in bytes."""
    per_node: int = 0
    """Tasks on one machine; if 0, the scheduler decides."""

    def __post_init__(self) -> None:
        require_int(self, "count", 1, _MAX_TASKS)
        require_int(self, "cpus", 1, 2**12)
        require_int(self, "per_node", 0, _MAX_TASKS)
        require_int(self, "memory", 64 << 20, 2**60)


@dataclass(frozen=True, kw_only=True, slots=True)
class ManifestConfig:
    """A job of servers and workers that a scheduler runs.

    >>> ManifestConfig(name="ads", script="train.py", image="ads:1", servers=TaskShape(count=2),
    ...     workers=TaskShape(count=4)).script_command
    ('python', '-u', 'train.py')
    """

    name: str
    """The job's name in the scheduler: letters, digits and dashes."""

    script: str
    """The path of the script, in the image or on a file system that all machines share."""

    arguments: tuple[str, ...] = ()
    """Arguments passed to the script."""

    is_module: bool = False
    """Whether `script` is a module name, run like `python -m`."""

    servers: TaskShape
    workers: TaskShape

    image: str = ""
    """The container image; required by Kubernetes."""

    python: str = "python"
    """The interpreter, as seen by the tasks."""

    native_servers: bool = False
    """Whether servers run `sparsefleet server` instead of the script."""

    transport: TransportName = "auto"
    durability: DurabilityName = "process"
    """Failures that acknowledged changes survive; passed to servers as SPARSEFLEET_DURABILITY."""

    port: int = 0
    """The port of the first server on a machine. 0 means 9100 or, in Slurm, one derived from the
    job.
    """

    max_restarts: int = 20
    """How many times each process may be restarted alone."""

    grace_s: int = 60
    """Seconds between SIGTERM and SIGKILL, for workers to hand over and servers to drain."""

    environment: tuple[tuple[str, str], ...] = ()
    """Environment variables for every process."""

    state_size: str = "20Gi"
    """Kubernetes: the size of the volume for server logs and checkpoints."""

    storage_class: str = ""
    """Kubernetes: the storage class of that volume, which must be ReadWriteMany. Empty means the
    default class.
    """

    key_secret: str = ""
    """Kubernetes: an existing Secret whose `job.key` is the job key. If empty, NAME-key."""

    state_dir: str = "sparsefleet-state"
    """Slurm: the directory for server logs and the key, on a file system that all nodes share."""

    directives: tuple[str, ...] = ()
    """Slurm: additional options for both components, such as --partition=cpu."""

    setup: tuple[str, ...] = ()
    """Slurm: lines to run first in the batch script, such as `module load python`."""

    def __post_init__(self) -> None:
        if not re.fullmatch(_NAME, self.name) or len(self.name) > _MAX_NAME:
            raise ConfigError(
                f"ManifestConfig.name must be at most {_MAX_NAME} lower-case letters, digits and "
                f"dashes, and start and end with a letter or digit, got {self.name!r}"
            )
        require(bool(self.script), self, "script", "the path of a script, or a module")
        require_int(self, "port", 0, 2**16 - 2 - self.servers.count)
        require_int(self, "max_restarts", 0, 2**15)
        require_int(self, "grace_s", 1, 24 * 3600)
        self.require_durability("process", "disk", "replica")
        require(self.transport in get_args(TransportName), self, "transport", "auto, tls or plain")
        memory_bytes(self.state_size)
        for text in (*self.setup, *self.directives, *self.script_command):
            if "\n" in text or "\0" in text:
                raise ConfigError(f"values in a manifest must be a single line, got {text!r}")
        for option in self.directives:
            require(option.startswith("-"), self, "directives", "options such as --partition=cpu")
        for name, value in self.environment:
            is_name = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
            require(is_name and "\0" not in value, self, "environment", "variable names and values")
            if name == "SPARSEFLEET_JOB_KEY":
                raise ConfigError(
                    "ManifestConfig.environment must not contain SPARSEFLEET_JOB_KEY, because "
                    "anyone who reads the manifest would see it; the Slurm script creates its own "
                    "key, and Kubernetes keeps it in a Secret (--key-secret)"
                )

    def require_durability(self, *levels: str) -> None:
        """Raise ConfigError for a durability that a scheduler cannot provide."""
        if self.durability not in levels:
            raise ConfigError(
                f"ManifestConfig.durability must be {' or '.join(levels)}, since a scheduler "
                f"restarts failed processes, got {self.durability!r}"
            )

    @property
    def script_command(self) -> tuple[str, ...]:
        how = ("-m", self.script) if self.is_module else (self.script,)
        return (self.python, "-u", *how, *self.arguments)

    @property
    def server_command(self) -> tuple[str, ...]:
        if not self.native_servers:
            return self.script_command
        return (self.python, "-u", "-m", "sparsefleet", "server", "--transport", self.transport)
