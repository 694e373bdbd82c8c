"""Plan which processes of a job run on this node, and the environment of each."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.server.run_server import SUCCESSOR_FILE
from sparsefleet.store.own_loop import own_loop_path, replaceable_path

__all__ = [
    "EXPOSED_TRAFFIC",
    "ProcessPlan",
    "child_environment",
    "deal",
    "fixed_endpoints",
    "fixed_meeting_point",
    "fixed_replicas",
    "has_own_loop",
    "has_served",
    "is_replaceable",
    "is_traffic_exposed",
    "link_port",
    "listens_since",
    "plan_again",
    "plan_node",
    "state_of",
]

# May be left over from an outer launcher or an earlier job; each process gets its own values.
_ROLE_VARIABLES = (
    "FLAGS_selected_gpus",
    "PADDLE_CURRENT_ENDPOINT",
    "PADDLE_PORT",
    "PADDLE_PSERVER_ID",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_TRAINER_ID",
    "POD_IP",
)

_FAILOVER_WAIT_S = "60"  # unless the user chose a different time

EXPOSED_TRAFFIC = (
    "warning: without servers, workers on different nodes talk over torch.distributed, which "
    "neither encrypts nor authenticates. Use a private network (GLOO_SOCKET_IFNAME) or gloo's TLS "
    "(GLOO_DEVICE_TRANSPORT=TCP_TLS); see docs/collective.md"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessPlan:
    """A process to start, with its role, index, environment and log."""

    role: Literal["server", "worker", "replica"]
    index: int
    """The index among all servers, workers or replicas of the job. Each node has one replica."""
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for this process only."""
    log_path: str
    appends_log: bool = False
    """Whether to append to an existing log."""
    endpoint: str = ""
    """The address that a server or replica listens on."""
    incarnation: int = 0
    """How many times this process alone has been restarted."""

    @property
    def name(self) -> str:
        return f"{self.role} {self.index}"

    @property
    def short_name(self) -> str:
        """The name used in flags, such as worker.0."""
        return f"{self.role}.{self.index}"


def deal(count: int, num_nodes: int) -> list[range]:
    """Split `count` processes into contiguous ranges, one per node, of nearly equal sizes.

    >>> deal(5, 2)
    [range(0, 3), range(3, 5)]
    """
    size, larger = divmod(count, num_nodes)
    parts = []
    start = 0
    for node in range(num_nodes):
        end = start + size + (node < larger)
        parts.append(range(start, end))
        start = end
    return parts


def fixed_endpoints(config: LaunchConfig) -> list[str]:
    """Return all servers' endpoints, or [] if free ports have yet to be found for some of them."""
    if config.endpoints:
        return list(config.endpoints)
    if config.start_port == 0:
        return []
    hosts = config.nodes or ("127.0.0.1",)
    used: Counter[str] = Counter()
    endpoints = []
    for host, part in zip(hosts, deal(config.num_servers, len(hosts)), strict=True):
        for _ in part:
            endpoints.append(str(Endpoint(_bare(host), config.start_port + used[host])))
            used[host] += 1
    return endpoints


def link_port(config: LaunchConfig) -> int:
    """Return the port on the first node where launchers connect; it follows the job's own ports."""
    first = config.nodes[0]
    if config.paddle is not None:
        places = map(parse_endpoint, config.paddle.endpoints)
        return 1 + max(place.port for place in places if place.host == _bare(first))
    parts = deal(config.num_servers, len(config.nodes))
    taken = sum(len(part) for host, part in zip(config.nodes, parts, strict=True) if host == first)
    return config.start_port + taken


def fixed_meeting_point(config: LaunchConfig) -> str:
    """Return the rendezvous address of the workers, or "" if a free port has yet to be found."""
    if config.paddle is not None:
        return config.paddle.endpoints[0]
    if not config.nodes:
        return ""
    return str(Endpoint(_bare(config.nodes[0]), link_port(config) + 1))


def fixed_replicas(config: LaunchConfig) -> list[str]:
    """Return the replicas' endpoints, one per node, or [] if free ports have yet to be found."""
    if config.start_port == 0 or not config.nodes:
        return []
    return [
        str(
            Endpoint(_bare(host), config.start_port + len(part) + 2)
        )  # after link and meeting point
        for host, part in zip(
            config.nodes, deal(config.num_servers, len(config.nodes)), strict=True
        )
    ]


def plan_node(
    config: LaunchConfig,
    endpoints: list[str],
    meeting_point: str = "",
    restarts: int = 0,
    replicas: Sequence[str] = (),
) -> list[ProcessPlan]:
    """Return this node's processes: servers, workers and, if the job has replicas, its replica."""
    num_nodes = max(1, len(config.nodes))
    servers = deal(config.num_servers, num_nodes)[config.node_rank]
    workers = deal(config.num_workers, num_nodes)[config.node_rank]
    job_variables = {**_job_shape(config, endpoints), "SPARSEFLEET_RESTARTS": str(restarts)}
    meeting = {
        "SPARSEFLEET_MEETING_POINT": meeting_point,
        "SPARSEFLEET_WORKERS_PER_NODE": str(len(workers)),
    }
    plans = [_plan_replica(config, replicas[config.node_rank])] if replicas else []
    job_variables["SPARSEFLEET_REPLICAS"] = ",".join(_replica_of_each(config, replicas))
    plans += [_plan_server(config, endpoints, index) for index in servers]
    plans += [_plan_worker(config, index, index - workers.start) for index in workers]
    if config.proxies:
        meeting |= _addresses(list(config.proxies))
    return [
        replace(
            plan,
            variables={
                **job_variables,
                **(meeting if plan.role == "worker" else {}),
                **plan.variables,
            },
            appends_log=restarts > 0 or config.paddle is not None,
        )
        for plan in plans
    ]


def plan_again(plan: ProcessPlan, state_dir: str) -> ProcessPlan:
    """Return the plan for a process that is restarted alone.

    A server that has served left its configuration in its directory under `state_dir`. The
    successor needs nothing else, so it starts without the script and the script's imports.
    """
    command = plan.command
    if has_served(plan, state_dir):
        place = state_of(plan, state_dir)
        command = (sys.executable, "-u", "-m", "sparsefleet", "server", "--recover", place)
    return replace(plan, command=command, incarnation=plan.incarnation + 1, appends_log=True)


def has_served(plan: ProcessPlan, state_dir: str) -> bool:
    """Return whether the process is a durable server that was listening."""
    return plan.role == "server" and os.path.exists(
        os.path.join(state_of(plan, state_dir), SUCCESSOR_FILE)
    )


def listens_since(plan: ProcessPlan, state_dir: str) -> float:
    """Return when the durable server last began to listen, as time.time(), or 0.0 if never."""
    try:
        return os.stat(os.path.join(state_of(plan, state_dir), SUCCESSOR_FILE)).st_mtime
    except OSError:
        return 0.0


def has_own_loop(plan: ProcessPlan, state_dir: str) -> bool:
    """Return whether the process is a worker that has declared a custom training loop."""
    return plan.role == "worker" and os.path.exists(own_loop_path(state_dir, plan.index))


def is_replaceable(plan: ProcessPlan, memory_dir: str) -> bool:
    """Return whether the process is a rank whose replacement the other ranks can wait for."""
    if plan.role != "worker" or not memory_dir:
        return False
    return os.path.exists(replaceable_path(memory_dir, plan.index))


def child_environment(
    inherited: Mapping[str, str], config: LaunchConfig, job: Mapping[str, str], plan: ProcessPlan
) -> dict[str, str]:
    """Return the full environment of a process.

    job: the variables that all processes of the job share.
    """
    dropped = {*_ROLE_VARIABLES, *config.unset_variables}
    kept = {name: text for name, text in inherited.items() if name not in dropped}
    return {
        **({"SPARSEFLEET_FAILOVER_WAIT_S": _FAILOVER_WAIT_S} if config.is_durable else {}),
        **kept,
        **dict(config.set_variables),
        "PYTHONUNBUFFERED": "1",
        **job,
        **plan.variables,
        "SPARSEFLEET_INCARNATION": str(plan.incarnation),
    }


def is_traffic_exposed(config: LaunchConfig, inherited: Mapping[str, str]) -> bool:
    """Return whether workers exchange unprotected gradients between machines."""
    job_variables = {**inherited, **dict(config.set_variables)}
    is_chosen = (
        "GLOO_SOCKET_IFNAME" in job_variables
        or job_variables.get("GLOO_DEVICE_TRANSPORT") == "TCP_TLS"
    )
    outside = [host for host in config.nodes if not parse_endpoint(f"{host}:1").is_loopback]
    return config.num_servers == 0 and len(config.nodes) > 1 and bool(outside) and not is_chosen


def state_of(plan: ProcessPlan, state_dir: str) -> str:
    """Return the directory of a server's durable log."""
    return os.path.join(state_dir, f"server-{plan.index}")


def _plan_server(config: LaunchConfig, endpoints: list[str], index: int) -> ProcessPlan:
    endpoint = parse_endpoint(endpoints[index])
    return ProcessPlan(
        role="server",
        index=index,
        command=_server_command(config, endpoints, index),
        variables={
            "SPARSEFLEET_ROLE": "server",
            "SPARSEFLEET_INDEX": str(index),
            "TRAINING_ROLE": "PSERVER",
            "POD_IP": endpoint.host,
            "PADDLE_PORT": str(endpoint.port),
            "PADDLE_PSERVER_ID": str(index),
        },
        log_path=os.path.join(config.log_dir, f"serverlog.{index}"),
        endpoint=endpoints[index],
    )


def _replica_of_each(config: LaunchConfig, replicas: Sequence[str]) -> list[str]:
    """Return the endpoint of each server's replica, which is on the node after the server's."""
    parts = deal(config.num_servers, max(1, len(config.nodes)))
    return [
        replicas[(node + 1) % len(replicas)]
        for node, part in enumerate(parts)
        for _ in part
        if replicas
    ]


def _plan_replica(config: LaunchConfig, endpoint: str) -> ProcessPlan:
    index = config.node_rank
    flags = ["--endpoint", endpoint, "--transport", config.transport]
    return ProcessPlan(
        role="replica",
        index=index,
        command=(sys.executable, "-u", "-m", "sparsefleet", "replica", *flags),
        variables={"SPARSEFLEET_ROLE": "replica", "SPARSEFLEET_INDEX": str(index)},
        log_path=os.path.join(config.log_dir, f"replicalog.{index}"),
        endpoint=endpoint,
    )


def _plan_worker(config: LaunchConfig, index: int, local_index: int) -> ProcessPlan:
    log_number = index if config.paddle is None else local_index
    return ProcessPlan(
        role="worker",
        index=index,
        command=_script_command(config),
        variables={
            "SPARSEFLEET_ROLE": "worker",
            "SPARSEFLEET_INDEX": str(index),
            "TRAINING_ROLE": "TRAINER",
            "PADDLE_TRAINER_ID": str(index),
            **_paddle_variables(config, index, local_index),
        },
        log_path=os.path.join(config.log_dir, f"workerlog.{log_number}"),
    )


def _paddle_variables(config: LaunchConfig, index: int, local_index: int) -> dict[str, str]:
    if config.paddle is None:
        return {}
    return {
        "FLAGS_selected_gpus": str(config.paddle.gpus[local_index]),
        "PADDLE_CURRENT_ENDPOINT": config.paddle.endpoints[index],
        "PADDLE_TRAINER_ENDPOINTS": ",".join(config.paddle.endpoints),
    }


def _job_shape(config: LaunchConfig, endpoints: list[str]) -> dict[str, str]:
    return {
        **_addresses(endpoints),
        "SPARSEFLEET_WORKERS": str(config.num_workers),
        "SPARSEFLEET_TRANSPORT": config.transport,
        "SPARSEFLEET_DURABILITY": config.durability,
        "SPARSEFLEET_KEEP_GOING": "1" if config.keep_going else "0",
        "PADDLE_TRAINERS_NUM": str(config.num_workers),
    }


def _addresses(endpoints: list[str]) -> dict[str, str]:
    listed = ",".join(endpoints)
    return {"SPARSEFLEET_SERVERS": listed, "PADDLE_PSERVERS_IP_PORT_LIST": listed}


def _script_command(config: LaunchConfig) -> tuple[str, ...]:
    how = ("-m", config.script) if config.is_module else (config.script,)
    return (sys.executable, "-u", *how, *config.arguments)


def _server_command(config: LaunchConfig, endpoints: list[str], index: int) -> tuple[str, ...]:
    if not config.native_servers:
        return _script_command(config)
    flags = {
        "--endpoint": endpoints[index],
        "--index": str(index),
        "--num-servers": str(config.num_servers),
        "--transport": config.transport,
    }
    words = [word for flag in flags.items() for word in flag]
    return (sys.executable, "-u", "-m", "sparsefleet", "server", *words)


def _bare(host: str) -> str:
    return host.removeprefix("[").removesuffix("]")
