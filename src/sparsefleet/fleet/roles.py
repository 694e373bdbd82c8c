"""Roles from the environment.

A launcher or scheduler tells each process what it is by one of these families of variables:

* ours: SPARSEFLEET_ROLE, SPARSEFLEET_SERVERS, SPARSEFLEET_WORKERS, SPARSEFLEET_INDEX;
* Paddle's: TRAINING_ROLE, PADDLE_PSERVERS_IP_PORT_LIST, PADDLE_TRAINERS_NUM and more;
* of collective jobs only: Paddle's PADDLE_TRAINER_ENDPOINTS and more, and torchrun's RANK,
  WORLD_SIZE and more (module `collective_roles`).

The first family of which a variable is set counts, and then must be whole. With none set,
everything runs in this process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from sparsefleet.endpoint import Endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.collective_roles import (
    read_collective_role,
    selected_gpu,
    worker_endpoints,
)
from sparsefleet.fleet.environment import CheckedEnviron, any_set
from sparsefleet.fleet.role_info import RoleInfo

__all__ = ["read_general_role", "read_paddle_role", "role_from_environment", "split_files"]

_OURS = ("SPARSEFLEET_ROLE", "SPARSEFLEET_SERVERS", "SPARSEFLEET_WORKERS", "SPARSEFLEET_INDEX")
_PADDLE = (
    "TRAINING_ROLE",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINER_ID",
    "PADDLE_PORT",
)


def role_from_environment(
    variables: Mapping[str, str] | None = None, *, is_collective: bool = False
) -> RoleInfo:
    """The role of this process. Raises ConfigError naming the variable that is wrong.

    is_collective: for training without servers, where workers meet each other.

    >>> role_from_environment({}).kind
    'local'
    >>> role_from_environment({
    ...     "SPARSEFLEET_ROLE": "worker", "SPARSEFLEET_INDEX": "1", "SPARSEFLEET_WORKERS": "2",
    ...     "SPARSEFLEET_SERVERS": "10.0.0.7:9100",
    ... }).index
    1
    """
    variables = os.environ if variables is None else variables
    if any_set(variables, _OURS):
        return _read_ours(variables)
    if is_collective:
        return read_collective_role(variables)
    if any_set(variables, _PADDLE):
        return read_paddle_role(variables)
    return RoleInfo(kind="local")


def split_files(files: list[str], role: RoleInfo) -> list[str]:
    """The files of this worker: a contiguous part, the first workers one more if need be.

    A server has no part: it gets all, so that a script comes as far as to serve.

    >>> split_files(["a", "b", "c", "d", "e"], RoleInfo(kind="worker", index=1, worker_num=2))
    ['d', 'e']
    """
    if not isinstance(files, list):
        raise TypeError(f"files must be a list of names, got {type(files).__name__}")
    from sparsefleet.data import file_list

    if role.is_server:
        return file_list.WorkerFiles(files)
    return file_list.split_files(files, role.index, role.worker_num)


def read_paddle_role(variables: Mapping[str, str]) -> RoleInfo:
    """Paddle's family, for servers and workers; as PaddleCloudRoleMaker reads it."""
    environ = CheckedEnviron(variables, "others of Paddle's family (TRAINING_ROLE ...) are")
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
            f"POD_IP:PADDLE_PORT is {own!r}, which does not occur in "
            f"PADDLE_PSERVERS_IP_PORT_LIST {','.join(servers)!r}"
        )
    return _server(servers, servers.index(own), worker_num)


def read_general_role(variables: Mapping[str, str]) -> RoleInfo:
    """Paddle's family with the workers' endpoints; as GeneralRoleMaker reads it."""
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
            f"POD_IP:PADDLE_PORT is {own!r}, which does not occur in "
            f"PADDLE_PSERVERS_IP_PORT_LIST {','.join(servers)!r}; PADDLE_PSERVER_ID would "
            "give the place directly"
        )
    return _server(servers, servers.index(own), len(workers), workers)


def _read_ours(variables: Mapping[str, str]) -> RoleInfo:
    environ = CheckedEnviron(
        variables, "others of SPARSEFLEET_ROLE, _SERVERS, _WORKERS, _INDEX are"
    )
    kind = environ["SPARSEFLEET_ROLE"].one_of("worker", "server")
    meeting_point = environ.get("SPARSEFLEET_MEETING_POINT")
    # Workers that are told where to meet each other may do without servers.
    has_servers = kind == "server" or meeting_point is None or environ.get("SPARSEFLEET_SERVERS")
    servers = environ["SPARSEFLEET_SERVERS"].endpoints() if has_servers else ()
    worker_num = environ["SPARSEFLEET_WORKERS"].integer(low=1)
    index_variable = environ["SPARSEFLEET_INDEX"]
    if kind == "server":
        limit = (len(servers), "servers in SPARSEFLEET_SERVERS")
        return _server(servers, index_variable.integer(low=0, below=limit), worker_num)
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
    port = environ["PADDLE_PORT"].integer(low=1, below=(2**16, "ports end there"))
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
