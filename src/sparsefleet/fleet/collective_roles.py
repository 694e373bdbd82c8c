"""Roles of collective jobs from the environment: Paddle's and torchrun's variables."""

from __future__ import annotations

from collections.abc import Mapping

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.environment import CheckedEnviron, any_set
from sparsefleet.fleet.role_info import RoleInfo

__all__ = ["read_collective_role", "selected_gpu", "worker_endpoints", "workers_per_node"]

_PADDLE = (
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINING_ROLE",
)
_TORCHRUN = ("RANK", "WORLD_SIZE")


def read_collective_role(variables: Mapping[str, str]) -> RoleInfo:
    """The first of the two families of which a variable is set; local if none is.

    >>> read_collective_role({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    ...     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).meeting_point
    '127.0.0.1:29500'
    """
    if any_set(variables, _PADDLE):
        return _read_paddle(variables)
    if any_set(variables, _TORCHRUN):
        return _read_torchrun(variables)
    return RoleInfo(kind="local")


def worker_endpoints(environ: CheckedEnviron, worker_num: int) -> tuple[str, ...]:
    """PADDLE_TRAINER_ENDPOINTS of a job with that many workers; empty if it is not set."""
    variable = environ.get("PADDLE_TRAINER_ENDPOINTS")
    if variable is None:
        return ()
    found = variable.endpoints()
    if len(found) != worker_num:
        raise variable.refused(f"{worker_num} endpoints, as SPARSEFLEET_WORKERS says")
    return found


def selected_gpu(environ: CheckedEnviron) -> int | None:
    """The first of FLAGS_selected_gpus, by which Paddle's launcher gives each process one."""
    variable = environ.get("FLAGS_selected_gpus")
    if variable is None:
        return None
    first = variable.text.split(",")[0].strip()
    if not (first.isascii() and first.isdigit()):
        raise variable.refused("numbers of GPUs, separated by commas")
    return int(first)


def workers_per_node(workers: tuple[str, ...], index: int) -> int:
    """Workers on the machine of worker `index`.

    >>> workers_per_node(("10.0.0.7:6070", "10.0.0.7:6071", "10.0.0.8:6070"), 0)
    2
    """
    hosts = [parse_endpoint(text).host for text in workers]
    own = hosts[index]
    count = hosts.count(own)
    first = hosts.index(own)
    if hosts[first : first + count] != [own] * count:
        raise ConfigError(
            f"endpoints of workers: those of {own} must follow each other, got "
            f"{','.join(workers)!r}"
        )
    return count


def _read_paddle(variables: Mapping[str, str]) -> RoleInfo:
    environ = CheckedEnviron(variables, "others of Paddle's collective family are")
    workers = environ["PADDLE_TRAINER_ENDPOINTS"].endpoints()
    limit = (len(workers), "endpoints in PADDLE_TRAINER_ENDPOINTS")
    index = environ.integer("PADDLE_TRAINER_ID", below=limit)
    role = environ.get("PADDLE_TRAINING_ROLE")
    if role is not None:
        role.one_of("TRAINER")
    current = environ.get("PADDLE_CURRENT_ENDPOINT")
    if current is not None and current.text not in workers:
        raise current.refused(f"one of PADDLE_TRAINER_ENDPOINTS, {','.join(workers)}")
    return RoleInfo(
        kind="worker",
        index=index,
        worker_num=len(workers),
        worker_endpoints=workers,
        current_endpoint=workers[index] if current is None else current.text,
        meeting_point=workers[0],
        workers_per_node=workers_per_node(workers, index),
        gpu=selected_gpu(environ),
        restarts=environ.integer("SPARSEFLEET_RESTARTS"),
    )


def _read_torchrun(variables: Mapping[str, str]) -> RoleInfo:
    environ = CheckedEnviron(variables, "torchrun sets it with RANK, WORLD_SIZE, MASTER_ADDR")
    worker_num = environ["WORLD_SIZE"].integer(low=1)
    index = environ["RANK"].integer(low=0, below=(worker_num, "WORLD_SIZE"))
    master = environ.get("MASTER_ADDR")
    meeting_point = ""
    if master is not None:
        port = environ["MASTER_PORT"].integer(low=1, below=(2**16, "ports end there"))
        meeting_point = str(Endpoint(master.text.strip(), port))
    kept = environ.get("TORCHELASTIC_USE_AGENT_STORE")
    return RoleInfo(
        kind="worker",
        index=index,
        worker_num=worker_num,
        meeting_point=meeting_point,
        is_meeting_kept_elsewhere=kept is not None and kept.text.strip() == "True",
        workers_per_node=environ.integer(
            "LOCAL_WORLD_SIZE", below=(worker_num + 1, "WORLD_SIZE + 1")
        ),
        restarts=environ.integer("TORCHELASTIC_RESTART_COUNT"),
    )
