"""Reads the role of this process from environment variables.

A launcher or scheduler sets one of these families of variables:

* ours: SPARSEFLEET_ROLE, SPARSEFLEET_SERVERS, SPARSEFLEET_WORKERS, SPARSEFLEET_INDEX;
* Paddle's: TRAINING_ROLE, PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM and others;
* in collective jobs only: Paddle's PADDLE_TRAINER_ENDPOINTS and others, and torchrun's RANK,
  WORLD_SIZE and others;
* Slurm's and JobSet's, which also complete ours; see `schedulers.py`.

The first family with a variable that is set is used, and must then be complete. If none is set,
everything runs in this process. Errors name the variable.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.checked_environ import CheckedEnviron, any_set
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.schedulers import scheduler_variables

__all__ = [
    "read_collective_role",
    "read_general_role",
    "read_paddle_role",
    "role_from_environment",
    "selected_gpu",
    "split_files",
    "worker_endpoints",
    "workers_per_node",
]


_OURS = ("SPARSEFLEET_ROLE", "SPARSEFLEET_SERVERS", "SPARSEFLEET_WORKERS", "SPARSEFLEET_INDEX")
_PADDLE = (
    "TRAINING_ROLE",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINER_ID",
    "PADDLE_PORT",
)

_PADDLE_COLLECTIVE = (
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_TRAINER_ID",
    "PADDLE_TRAINING_ROLE",
)

_TORCHRUN = ("RANK", "WORLD_SIZE")


def role_from_environment(
    variables: Mapping[str, str] | None = None, *, is_collective: bool = False
) -> RoleInfo:
    """Return the role of this process. Raises a ConfigError that names the invalid variable.

    is_collective: also read the variables of jobs without servers.

    >>> role_from_environment({}).kind
    'local'
    >>> role_from_environment({
    ...     "SPARSEFLEET_ROLE": "worker", "SPARSEFLEET_INDEX": "1", "SPARSEFLEET_WORKERS": "2",
    ...     "SPARSEFLEET_SERVERS": "10.0.0.7:9100",
    ... }).index
    1
    """
    variables = os.environ if variables is None else variables
    if any_set(variables, ("SPARSEFLEET_ROLE", "SPARSEFLEET_INDEX")):
        return _read_ours(variables)
    if not any_set(variables, _OURS):
        if is_collective and any_set(variables, _PADDLE_COLLECTIVE + _TORCHRUN):
            return read_collective_role(variables)
        if not is_collective and any_set(variables, _PADDLE):
            return read_paddle_role(variables)
    found = scheduler_variables(variables, has_servers=not is_collective)
    found |= {name: text for name, text in variables.items() if text.strip()}
    return _read_ours(found) if any_set(found, _OURS) else RoleInfo(kind="local")


def split_files(files: list[str], role: RoleInfo) -> list[str]:
    """Return this worker's contiguous part of the files; the first workers may get an extra one.

    A server process gets all files, so that a script reaches the call that starts serving.

    >>> split_files(["a", "b", "c", "d", "e"], RoleInfo(kind="worker", index=1, worker_num=2))
    ['d', 'e']
    """
    if not isinstance(files, list):
        raise TypeError(f"files must be a list of str, got {type(files).__name__}")
    from sparsefleet.data import file_list

    if role.is_server:
        return file_list.WorkerFiles(files)
    return file_list.split_files(files, role.index, role.worker_num)


def read_paddle_role(variables: Mapping[str, str]) -> RoleInfo:
    """Like PaddleCloudRoleMaker, read Paddle's variables for servers and workers."""
    environ = CheckedEnviron(
        variables, "other variables of Paddle's launcher (TRAINING_ROLE ...) are"
    )
    servers = environ["PADDLE_PSERVERS_IP_PORT_LIST"].endpoints()
    worker_num = environ["PADDLE_TRAINERS_NUM"].integer(low=1)
    if environ["TRAINING_ROLE"].one_of("TRAINER", "PSERVER") == "TRAINER":
        limit = (worker_num, "PADDLE_TRAINERS_NUM")
        return RoleInfo(
            kind="worker",
            index=environ["PADDLE_TRAINER_ID"].integer(low=0, below=limit),
            worker_num=worker_num,
            server_endpoints=servers,
        )
    own = _own_paddle_endpoint(environ)
    if own not in servers:
        raise ConfigError(
            f"POD_IP:PADDLE_PORT is {own!r}, which is not in "
            f"PADDLE_PSERVERS_IP_PORT_LIST {','.join(servers)!r}"
        )
    return _server(servers, servers.index(own), worker_num)


def read_general_role(variables: Mapping[str, str]) -> RoleInfo:
    """Like GeneralRoleMaker, read Paddle's variables, including worker endpoints."""
    environ = CheckedEnviron(variables, "GeneralRoleMaker needs it")
    servers = environ["PADDLE_PSERVERS_IP_PORT_LIST"].endpoints()
    workers = environ["PADDLE_TRAINER_ENDPOINTS"].endpoints()
    if environ["TRAINING_ROLE"].one_of("TRAINER", "PSERVER") == "TRAINER":
        limit = (len(workers), "endpoints in PADDLE_TRAINER_ENDPOINTS")
        index = environ["PADDLE_TRAINER_ID"].integer(low=0, below=limit)
        return RoleInfo(
            kind="worker",
            index=index,
            worker_num=len(workers),
            server_endpoints=servers,
            worker_endpoints=workers,
            current_endpoint=workers[index],
        )
    index_variable = environ.get("PADDLE_PSERVER_ID")
    if index_variable is not None:
        limit = (len(servers), "servers in PADDLE_PSERVERS_IP_PORT_LIST")
        index = index_variable.integer(low=0, below=limit)
        return _server(servers, index, len(workers), workers)
    own = _own_paddle_endpoint(environ)
    if own not in servers:
        raise ConfigError(
            f"POD_IP:PADDLE_PORT is {own!r}, which is not in "
            f"PADDLE_PSERVERS_IP_PORT_LIST {','.join(servers)!r}; set PADDLE_PSERVER_ID to the "
            "index instead"
        )
    return _server(servers, servers.index(own), len(workers), workers)


def _read_ours(variables: Mapping[str, str]) -> RoleInfo:
    environ = CheckedEnviron(variables, "some of SPARSEFLEET_ROLE, _SERVERS, _WORKERS, _INDEX are")
    kind = environ["SPARSEFLEET_ROLE"].one_of("worker", "server")
    meeting_point = environ.get("SPARSEFLEET_MEETING_POINT")
    # Workers with a meeting point do not need servers.
    has_servers = kind == "server" or meeting_point is None or environ.get("SPARSEFLEET_SERVERS")
    servers = environ["SPARSEFLEET_SERVERS"].endpoints() if has_servers else ()
    worker_num = environ["SPARSEFLEET_WORKERS"].integer(low=1)
    index_variable = environ["SPARSEFLEET_INDEX"]
    if kind == "server":
        limit = (len(servers), "servers in SPARSEFLEET_SERVERS")
        made = _server(servers, index_variable.integer(low=0, below=limit), worker_num)
        listen = environ.get("SPARSEFLEET_LISTEN")
        return made if listen is None else replace(made, current_endpoint=listen.endpoints()[0])
    index = index_variable.integer(low=0, below=(worker_num, "SPARSEFLEET_WORKERS"))
    workers = worker_endpoints(environ, worker_num)
    return RoleInfo(
        kind="worker",
        index=index,
        worker_num=worker_num,
        server_endpoints=servers,
        worker_endpoints=workers,
        current_endpoint=workers[index] if workers else "",
        meeting_point="" if meeting_point is None else meeting_point.endpoints()[0],
        workers_per_node=environ.integer(
            "SPARSEFLEET_WORKERS_PER_NODE", below=(worker_num + 1, "SPARSEFLEET_WORKERS + 1")
        ),
        gpu=selected_gpu(environ),
        restarts=environ.integer("SPARSEFLEET_RESTARTS"),
    )


def _own_paddle_endpoint(environ: CheckedEnviron) -> str:
    port = environ["PADDLE_PORT"].integer(low=1, below=(2**16, "the number of ports"))
    return str(Endpoint(environ["POD_IP"].text.strip(), port))


def _server(
    servers: tuple[str, ...], index: int, worker_num: int, workers: tuple[str, ...] = ()
) -> RoleInfo:
    return RoleInfo(
        kind="server",
        index=index,
        worker_num=worker_num,
        server_endpoints=servers,
        worker_endpoints=workers,
        current_endpoint=servers[index],
    )


def read_collective_role(variables: Mapping[str, str]) -> RoleInfo:
    """Read Paddle's variables if set, otherwise torchrun's; without either, the role is local.

    >>> read_collective_role({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    ...     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).meeting_point
    '127.0.0.1:29500'
    """
    if any_set(variables, _PADDLE_COLLECTIVE):
        return _read_paddle(variables)
    if any_set(variables, _TORCHRUN):
        return _read_torchrun(variables)
    return RoleInfo(kind="local")


def worker_endpoints(environ: CheckedEnviron, worker_num: int) -> tuple[str, ...]:
    """Return PADDLE_TRAINER_ENDPOINTS, which must list every worker; empty if it is not set."""
    variable = environ.get("PADDLE_TRAINER_ENDPOINTS")
    if variable is None:
        return ()
    found = variable.endpoints()
    if len(found) != worker_num:
        raise variable.refused(f"{worker_num} endpoints, the value of SPARSEFLEET_WORKERS")
    return found


def selected_gpu(environ: CheckedEnviron) -> int | None:
    """Return the first GPU in FLAGS_selected_gpus, which Paddle's launcher sets per process."""
    variable = environ.get("FLAGS_selected_gpus")
    if variable is None:
        return None
    first = variable.text.split(",")[0].strip()
    if not (first.isascii() and first.isdigit()):
        raise variable.refused("comma-separated GPU numbers")
    return int(first)


def workers_per_node(workers: tuple[str, ...], index: int) -> int:
    """Return the number of workers on the machine of worker `index`.

    >>> workers_per_node(("10.0.0.7:6070", "10.0.0.7:6071", "10.0.0.8:6070"), 0)
    2
    """
    hosts = [parse_endpoint(text).host for text in workers]
    own = hosts[index]
    count = hosts.count(own)
    first = hosts.index(own)
    if hosts[first : first + count] != [own] * count:
        raise ConfigError(f"worker endpoints on {own} must be adjacent, got {','.join(workers)!r}")
    return count


def _read_paddle(variables: Mapping[str, str]) -> RoleInfo:
    environ = CheckedEnviron(variables, "other variables of Paddle's collective launcher are")
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
        port = environ["MASTER_PORT"].integer(low=1, below=(2**16, "the number of ports"))
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
