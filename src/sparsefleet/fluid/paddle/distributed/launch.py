"""`python -m sparsefleet.distributed.launch`: Fluid's launcher for collective jobs, with its flags.

Starts one process per GPU on this machine. Run the same command on each machine in the job. Unlike
Fluid's launcher, it returns the exit code of the failed process; see `sparsefleet launch`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.fleet.checked_environ import CheckedEnviron
from sparsefleet.launch import LaunchConfig, run_job
from sparsefleet.launch.launch_config import PaddleWorkers

__all__ = ["PaddleCluster", "cluster_from_cloud", "main"]

_CLOUD_PORT = 6170


@dataclass(frozen=True, slots=True)
class PaddleCluster:
    """The machines in a job, and the endpoints of their processes, machine by machine."""

    node_ips: tuple[str, ...]
    node_rank: int
    """This machine's index."""
    endpoints: tuple[str, ...]

    @property
    def first_port(self) -> int:
        return parse_endpoint(self.endpoints[0]).port

    @classmethod
    def from_first_port(
        cls, node_ips: tuple[str, ...], node_rank: int, port: int | None, num_local: int
    ) -> PaddleCluster:
        """Use ports starting at `port` on every machine; if None, use free ports on the only
        machine.

        >>> PaddleCluster.from_first_port(("10.0.0.7", "10.0.0.8"), 0, 6070, 2).endpoints
        ('10.0.0.7:6070', '10.0.0.7:6071', '10.0.0.8:6070', '10.0.0.8:6071')
        """
        if len(set(node_ips)) != len(node_ips):
            raise ConfigError(f"duplicate machine in {','.join(node_ips)}; list each machine once")
        ports = _free_ports(num_local) if port is None else range(port, port + num_local)
        places = tuple(str(Endpoint(ip, number)) for ip in node_ips for number in ports)
        return cls(node_ips, node_rank, places)


def cluster_from_cloud(
    variables: Mapping[str, str], started_port: int | None, num_local: int
) -> PaddleCluster:
    """Read the environment variables that Paddle's scheduler sets.

    Raises ConfigError if one is invalid.
    """
    environ = CheckedEnviron(variables, "--use_paddlecloud needs it")
    node_ips = tuple(text.strip() for text in environ["PADDLE_TRAINERS"].text.split(","))
    environ["POD_IP"].one_of(*node_ips)
    limit = (len(node_ips), "machines in PADDLE_TRAINERS")
    node_rank = environ["PADDLE_TRAINER_ID"].integer(low=0, below=limit)
    num_ports = environ["TRAINER_PORTS_NUM"].integer(low=1)
    given = environ.get("DISTRIBUTED_TRAINER_ENDPOINTS")
    if given is not None:
        found = given.endpoints()
        if len(found) != len(node_ips) * num_ports or num_local > num_ports:
            raise given.refused(
                f"a list of TRAINER_PORTS_NUM ({num_ports}) endpoints for each of {len(node_ips)} "
                f"machines, at least {num_local} per machine, one for each process"
            )
        starts = range(0, len(found), num_ports)
        places = [place for start in starts for place in found[start : start + num_local]]
        return PaddleCluster(node_ips, node_rank, tuple(places))
    port = started_port or _CLOUD_PORT
    first_port = environ.get("PADDLE_PORT")
    if first_port is not None and num_ports >= num_local:
        port = first_port.integer(low=1)
    return PaddleCluster.from_first_port(node_ips, node_rank, port, num_local)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


_PROXIES = ("http_proxy", "https_proxy")
_GRACE_S = 3.0  # as in Fluid
_PORT_ON_SEVERAL_NODES = 6070
_INFO = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    with contextlib.ExitStack() as stack:
        # Without a log directory, all of the processes' output is shown.
        log_dir = options.log_dir or stack.enter_context(tempfile.TemporaryDirectory())
        try:
            config = _config(options, os.environ, log_dir)
        except ConfigError as error:
            parser.error(str(error))
        if options.print_config:
            _print_config(options)
        try:
            return run_job(config)
        except (SparseFleetError, OSError) as error:
            print(f"launch: error: {error}", file=sys.stderr)
            return 1


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m sparsefleet.distributed.launch",
        description="Starts the processes of a collective job on this machine, one per GPU.",
    )
    parser.add_argument(
        "--cluster_node_ips",
        default="127.0.0.1",
        help="IP addresses of all machines, comma-separated (default 127.0.0.1)",
    )
    parser.add_argument(
        "--node_ip", default="127.0.0.1", help="IP address of this machine (default 127.0.0.1)"
    )
    parser.add_argument(
        "--use_paddlecloud",
        action="store_true",
        help="get machines and ports from the scheduler's variables, such as PADDLE_TRAINERS",
    )
    parser.add_argument(
        "--started_port",
        type=int,
        default=None,
        help="first port on each machine (default: free ports, or 6070 for several machines)",
    )
    parser.add_argument(
        "--print_config",
        type=bool,
        default=True,
        help="show the settings unless empty, as in Fluid",
    )
    parser.add_argument(
        "--selected_gpus",
        default=None,
        help="GPUs to use, such as 0,1,2 (default: all). On a machine without GPUs, runs the same "
        "number of processes on the CPU (default: one)",
    )
    parser.add_argument(
        "--log_level", type=int, default=_INFO, help="above 20, show only failures (default 20)"
    )
    parser.add_argument(
        "--log_dir", default=None, help="directory for workerlog.0 and so on (default: show output)"
    )
    parser.add_argument("training_script", help="Python script to run in every process")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def _config(options: argparse.Namespace, environ: Mapping[str, str], log_dir: str) -> LaunchConfig:
    gpus = _gpus(options.selected_gpus, environ.get("CUDA_VISIBLE_DEVICES", ""))
    cluster = _cluster(options, environ, len(gpus))
    is_one_node = len(cluster.node_ips) == 1
    return LaunchConfig(
        script=options.training_script,
        arguments=tuple(options.training_script_args),
        num_servers=0,
        num_workers=len(cluster.node_ips) * len(gpus),
        log_dir=log_dir,
        start_port=0 if is_one_node else cluster.first_port,
        nodes=() if is_one_node else cluster.node_ips,
        node_rank=cluster.node_rank,
        quiet=options.log_level > _INFO,
        show="" if options.log_dir else "all",
        grace_s=_GRACE_S,
        unset_variables=_PROXIES,
        paddle=PaddleWorkers(endpoints=cluster.endpoints, gpus=gpus),
    )


def _gpus(selected: str | None, visible: str) -> tuple[int, ...]:
    """Return the indices of the selected GPUs among the visible GPUs; see FLAGS_selected_gpus."""
    if selected is None:
        import torch

        return tuple(range(max(1, torch.cuda.device_count())))
    wanted = [text.strip() for text in selected.split(",")]
    for text in wanted:
        if not (text.isascii() and text.isdigit()):
            raise ConfigError(f"--selected_gpus must be numbers such as 0,1,2, got {selected!r}")
    if not visible.strip():
        return tuple(int(text) for text in wanted)
    seen = [text.strip() for text in visible.split(",")]
    for text in wanted:
        if text not in seen:
            raise ConfigError(
                f"--selected_gpus contains {text}, which is not in CUDA_VISIBLE_DEVICES {visible!r}"
            )
    return tuple(seen.index(text) for text in wanted)


def _cluster(
    options: argparse.Namespace, environ: Mapping[str, str], num_local: int
) -> PaddleCluster:
    if options.use_paddlecloud and environ.get("PADDLE_TRAINERS_NUM", "1").strip() != "1":
        return cluster_from_cloud(environ, options.started_port, num_local)
    node_ips = tuple(text.strip() for text in options.cluster_node_ips.split(","))
    if options.node_ip not in node_ips:
        raise ConfigError(
            f"--node_ip {options.node_ip} is not in --cluster_node_ips {','.join(node_ips)}"
        )
    port = options.started_port
    if port is None and (len(node_ips) > 1 or options.use_paddlecloud):
        port = _PORT_ON_SEVERAL_NODES
    return PaddleCluster.from_first_port(node_ips, node_ips.index(options.node_ip), port, num_local)


def _print_config(options: argparse.Namespace) -> None:
    print("-----------  Configuration Arguments -----------")
    for name, value in sorted(vars(options).items()):
        print(f"{name}: {value}")
    print("------------------------------------------------", flush=True)


if __name__ == "__main__":
    sys.exit(main())
