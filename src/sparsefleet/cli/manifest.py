"""The flags of `sparsefleet manifest`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from sparsefleet.cli.launch import assignment
from sparsefleet.cli.option_names import naming_options
from sparsefleet.errors import ConfigError
from sparsefleet.launch.launch_config import TransportName
from sparsefleet.launch.manifests import (
    ManifestConfig,
    TaskShape,
    default_name,
    jobset_yaml,
    memory_bytes,
    rayjob_yaml,
    slurm_script,
    trainjob_yaml,
)

__all__ = [
    "MANIFEST_DESCRIPTION",
    "MANIFEST_EPILOG",
    "add_manifest_commands",
    "run_manifest_command",
]

MANIFEST_DESCRIPTION = """\
Writes a job of servers and workers as a file for a scheduler: a batch script for Slurm, or YAML for
Kubernetes. The script is the same as for `sparsefleet launch`; its processes read their role from
the scheduler's variables. A process that dies is restarted alone, from its durable state.
"""
MANIFEST_EPILOG = """\
examples:
  sparsefleet manifest slurm --servers 4 --workers 16 --option=--partition=cpu train.py > job.sh
  sparsefleet manifest jobset --servers 4 --workers 16 --image registry/ads:1 train.py -o job.yaml
  sparsefleet manifest rayjob --servers 4 --workers 16 --image registry/ads:1 train.py
  sparsefleet manifest trainjob --servers 4 --workers 16 --image registry/ads:1 train.py

docs/clusters.md explains which one to choose, and how to size a job.
"""

_KINDS = {
    "slurm": "a batch script: a heterogeneous job of servers and workers",
    "jobset": "a JobSet for Kubernetes",
    "rayjob": "a RayJob for KubeRay, which runs `sparsefleet launch --on ray`",
    "trainjob": "a TrainJob and its runtime for Kubeflow Trainer 2",
}
_RAY_VERSION = "2.60.0"


def add_manifest_commands(parser: argparse.ArgumentParser) -> None:
    """Add one command per scheduler."""
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True)
    for kind, summary in _KINDS.items():
        made = kinds.add_parser(
            kind,
            help=summary,
            description=f"Writes {summary}.",
            epilog=MANIFEST_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        made.set_defaults(parser=made)
        _add_job_flags(made, kind)
        _add_task_flags(made)
        if kind == "slurm":
            _add_slurm_flags(made)
        else:
            _add_kubernetes_flags(made, kind)
        made.add_argument(
            "-o", "--output", default="", metavar="FILE", help="write FILE (default: to stdout)"
        )
        made.add_argument(
            "-m", dest="is_module", action="store_true", help="SCRIPT is the name of a module"
        )
        made.add_argument(
            "script", metavar="SCRIPT", help="path of the script as the processes see it"
        )
        made.add_argument(
            "arguments", metavar="...", nargs=argparse.REMAINDER, help="arguments of the script"
        )


def _add_job_flags(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument
    add("--name", default="", help="name of the job (default: derived from the script)")
    add(
        "--image",
        default="",
        required=kind != "slurm",
        help="container image with sparsefleet and the script; see Dockerfile"
        + ("; run by apptainer (default: none)" if kind == "slurm" else ""),
    )
    levels = {
        "process": "a killed process, the default",
        "disk": "also the loss of a machine, if the state is on shared storage",
    }
    if kind == "rayjob":  # the logs are on the nodes of Ray
        levels |= {
            "disk": "also a crash of a node's operating system",
            "replica": "also the loss of a node, since the next server's node has a copy",
        }
    add(
        "--durability",
        choices=tuple(levels),
        default="process",
        help="failures that acknowledged changes survive: "
        + ", ".join(f"{name} ({text})" for name, text in levels.items()),
    )
    add(
        "--transport",
        choices=get_args(TransportName),
        default="auto",
        help="see `sparsefleet server`",
    )
    add(
        "--max-restarts",
        type=int,
        default=20,
        metavar="N",
        help="maximum number of restarts of each process (default 20)",
    )
    add(
        "--grace-seconds",
        type=int,
        default=60,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL (default 60)",
    )
    add(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="environment variable for all processes",
    )
    add(
        "--native-servers",
        action="store_true",
        help="servers run `sparsefleet server`; only workers run SCRIPT",
    )
    if kind != "rayjob":
        rule = "20000 to 31999, depending on the job's number" if kind == "slurm" else "9100"
        add(
            "--port",
            type=int,
            default=0,
            help=f"port of the first server on a machine (default: {rule})",
        )


def _add_task_flags(parser: argparse.ArgumentParser) -> None:
    for role, count in (("server", 1), ("worker", 1)):
        add = parser.add_argument
        add(
            f"--{role}s",
            type=int,
            default=count,
            metavar="N",
            help=f"number of {role}s (default {count})",
        )
        add(f"--{role}-cpus", type=int, default=4, metavar="N", help=f"CPUs per {role} (default 4)")
        add(
            f"--{role}-memory",
            default="8GiB",
            metavar="SIZE",
            help=f"memory per {role} (default 8GiB); `sparsefleet plan` estimates it",
        )


def _add_slurm_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--servers-per-node", type=int, default=0, metavar="N", help="default: chosen by Slurm")
    add("--workers-per-node", type=int, default=0, metavar="N", help="default: chosen by Slurm")
    add(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="additional sbatch option for both components, such as --option=--partition=cpu",
    )
    add(
        "--setup",
        action="append",
        default=[],
        metavar="COMMAND",
        help="command to run first, such as 'module load python'; may be repeated",
    )
    add(
        "--python",
        default="",
        metavar="PATH",
        help="the interpreter (default: the one that runs this command; with --image or --setup, "
        "python)",
    )
    add(
        "--state-dir",
        default="sparsefleet-state",
        metavar="DIRECTORY",
        help="where logs, the servers' state and the key are kept, on a file system that all nodes "
        "share (default sparsefleet-state)",
    )


def _add_kubernetes_flags(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument
    add(
        "--key-secret",
        default="",
        metavar="SECRET",
        help="an existing Secret whose job.key is the job key (default NAME-key)",
    )
    add(
        "--state-size",
        default="20Gi",
        metavar="SIZE",
        help="size of the volume for server logs and checkpoints (default 20Gi); allow twice "
        "the size of the tables",
    )
    add(
        "--storage-class",
        default="",
        metavar="CLASS",
        help="storage class of that volume, which several pods write to (default: the cluster's)",
    )
    if kind == "rayjob":
        add(
            "--ray-version",
            default=_RAY_VERSION,
            help="Ray version in the image (default %(default)s)",
        )


_OPTIONS = {
    "script": "SCRIPT",
    "arguments": "the script's arguments",
    "grace_s": "--grace-seconds",
    "directives": "--option",
    "environment": "--env",
}
"""Options of `ManifestConfig`'s fields, where their names differ."""


def run_manifest_command(options: argparse.Namespace) -> int:
    """Write the manifest. Raises ConfigError for an invalid command line."""
    config = manifest_config(options)
    with naming_options("ManifestConfig", **_OPTIONS):
        text = _WRITERS[options.kind](options, config)
    if not options.output:
        sys.stdout.write(text)
        return 0
    path = Path(options.output)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--output {options.output!r} cannot be written: {error.strerror}; give a file in a "
            "writable directory"
        ) from error
    if options.kind == "slurm":
        path.chmod(0o755)
    is_slurm = options.kind == "slurm"
    first = "" if is_slurm else "create the job key as its first lines say, then "
    how = "sbatch" if is_slurm else "kubectl apply -f"
    command = f"{how} {shlex.quote(str(path))}"
    print(f"wrote {path}; {first}start the job with: {command}", file=sys.stderr)
    return 0


def manifest_config(options: argparse.Namespace) -> ManifestConfig:
    """Return the job described by the flags. Raises ConfigError."""
    is_slurm = options.kind == "slurm"
    is_here = is_slurm and not (options.image or options.setup)
    if is_here and not options.is_module and not os.path.isfile(options.script):
        raise ConfigError(f"script {options.script!r} does not exist or is not a file")
    more: dict[str, Any] = {}
    if is_slurm:
        more = {
            "python": options.python or (sys.executable if is_here else "python"),
            "state_dir": options.state_dir,
            "directives": tuple(options.option),
            "setup": tuple(options.setup),
        }
    else:
        more = {
            "key_secret": options.key_secret,
            "state_size": options.state_size,
            "storage_class": options.storage_class,
        }
    with naming_options("ManifestConfig", **_OPTIONS):
        return ManifestConfig(
            name=options.name or default_name(options.script),
            script=options.script,
            arguments=tuple(options.arguments),
            is_module=options.is_module,
            servers=_tasks(options, "server"),
            workers=_tasks(options, "worker"),
            image=options.image,
            native_servers=options.native_servers,
            transport=options.transport,
            durability=options.durability,
            port=getattr(options, "port", 0),
            max_restarts=options.max_restarts,
            grace_s=options.grace_seconds,
            environment=tuple(assignment(text) for text in options.env),
            **more,
        )


def _tasks(options: argparse.Namespace, role: str) -> TaskShape:
    count = getattr(options, f"{role}s")
    if count < 1:
        advice = {
            "server": "a job without servers needs no sparsefleet manifest; see torchrun in "
            "docs/clusters.md",
            "worker": "workers run the script; pass the number of processes that train",
        }
        raise ConfigError(f"--{role}s must be at least 1, got {count}; {advice[role]}")
    fields = {"cpus": f"--{role}-cpus", "memory": f"--{role}-memory", "count": f"--{role}s"}
    with naming_options("TaskShape", **fields, per_node=f"--{role}s-per-node"):
        return TaskShape(
            count=count,
            cpus=getattr(options, f"{role}_cpus"),
            memory=memory_bytes(getattr(options, f"{role}_memory")),
            per_node=getattr(options, f"{role}s_per_node", 0),
        )


_WRITERS: dict[str, Callable[[argparse.Namespace, ManifestConfig], str]] = {
    "slurm": lambda _, config: slurm_script(config),
    "jobset": lambda _, config: jobset_yaml(config),
    "rayjob": lambda options, config: rayjob_yaml(config, options.ray_version),
    "trainjob": lambda _, config: trainjob_yaml(config),
}
