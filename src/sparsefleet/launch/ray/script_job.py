"""`sparsefleet launch --on ray`: run a job's script on the nodes of a Ray cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray
import ray.train
from ray.train.constants import RAY_CHDIR_TO_TRIAL_DIR

from sparsefleet.endpoint import Endpoint, parse_endpoint
from sparsefleet.errors import ConfigError, SparseFleetError
from sparsefleet.field_checks import require_not_negative
from sparsefleet.launch.launch_config import LaunchConfig
from sparsefleet.launch.ray.script import ScriptFailedError, run_script
from sparsefleet.launch.ray.servers import PlacementName, ScriptPlan, Servers
from sparsefleet.launch.ray.trainer import connect, make_plan, run_plan

__all__ = ["RayLaunch", "run_on_ray"]

_INTERRUPTED = 130
_REACHABLE_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RayLaunch:
    """The options that `sparsefleet launch --on ray` adds to a job's configuration."""

    address: str = ""
    """Address of the Ray cluster. If empty: RAY_ADDRESS, else a local cluster, else a new one."""

    name: str = ""
    """The job's name. If the driver was killed, a driver with the same name continues the job."""

    server_memory: str = "0"
    """See `Servers.memory`."""

    server_cpus: float = 1.0
    """See `Servers.num_cpus`."""

    worker_cpus: float = 1.0
    """CPUs that Ray reserves for each worker."""

    worker_placement: PlacementName = "PACK"
    """Whether workers are packed onto few nodes or spread over many."""

    def __post_init__(self) -> None:
        require_not_negative(self, "worker_cpus")


def run_on_ray(config: LaunchConfig, on_ray: RayLaunch) -> int:
    """Run the job to completion; return the exit code of the command.

    The code is 0 if all workers exited with 0, 130 after Ctrl-C, and otherwise the exit code
    of the failed script, or 1 if there is none. Raises ConfigError for options that Ray handles
    itself or does not support.
    """
    _require_possible(config)
    servers = Servers(
        config.num_servers,
        memory=on_ray.server_memory,
        num_cpus=on_ray.server_cpus,
        durability=config.durability,
        transport=config.transport,
    )
    num_cpus = config.num_servers * servers.num_cpus + config.num_workers * on_ray.worker_cpus
    dashboard = _connect(on_ray.address, num_cpus, shows_output=not config.quiet)
    # Ray Train reads this variable here, and would otherwise move workers to its own directory.
    os.environ[RAY_CHDIR_TO_TRIAL_DIR] = "0"
    name = on_ray.name or f"{os.path.basename(config.script)}-{os.urandom(4).hex()}"
    restarts = config.restart_limit if config.restart_rule != "all" else config.max_restarts or 0
    run_config = ray.train.RunConfig(
        name=name,
        storage_path=os.path.abspath(os.path.join(config.log_dir, "ray")),
        failure_config=ray.train.FailureConfig(max_failures=restarts),
    )
    script = ScriptPlan(
        script=config.script if config.is_module else os.path.abspath(config.script),
        arguments=config.arguments,
        is_module=config.is_module,
        native_servers=config.native_servers,
        directory=os.getcwd(),
        restart=config.restart,
    )
    plan = make_plan(
        servers,
        config.num_workers,
        run_config,
        script=script,
        variables=_variables(config),
    )
    if not config.quiet:
        where = f"; dashboard at http://{dashboard}" if dashboard else ""
        again = f", start {plan.attempt + 1}: continuing where it was interrupted"
        print(f"job {name} on Ray{where}{again if plan.attempt else ''}", flush=True)
    scaling = ray.train.ScalingConfig(
        num_workers=config.num_workers,
        resources_per_worker={"CPU": on_ray.worker_cpus},
        placement_strategy=on_ray.worker_placement,
    )
    work = functools.partial(run_script, script)
    return _exit_code(
        lambda: run_plan(plan, work, datasets={}, scaling_config=scaling, run_config=run_config)
    )


def _require_possible(config: LaunchConfig) -> None:
    if config.restart == "all" and config.is_durable:
        raise ConfigError(
            "--restart all needs --durability off or --servers 0 with --on ray, because durable "
            "servers outlive the workers on Ray; use --restart killed or failed"
        )
    unknown = {
        "--nodes": bool(config.nodes),
        "--start-port": config.start_port != 0,
        "--keep-going": config.keep_going,
        "--dashboard": bool(config.dashboard),
        "--show": bool(config.show),
        "--state-dir": bool(config.state_dir),
    }
    for flag, is_given in unknown.items():
        if is_given:
            raise ConfigError(
                f"{flag} is only for jobs with local processes; with --on ray, Ray places "
                "processes, shows their output here and in its dashboard, and replaces lost "
                "workers; a job with --job NAME continues after its driver is killed"
            )


def _variables(config: LaunchConfig) -> dict[str, str]:
    """Return the environment variables for every process, from --env and --metrics."""
    if not config.metrics:
        return dict(config.set_variables)
    own = Endpoint(parse_endpoint(config.metrics).host, 0)
    return {"SPARSEFLEET_METRICS": str(own), **dict(config.set_variables)}


def _connect(address: str, num_cpus: float, *, shows_output: bool) -> str:
    """Connect to the cluster; return the address of its dashboard, if any."""
    try:
        _require_reachable(address)
        found = connect(num_cpus, address, ignore_reinit_error=True, log_to_driver=shows_output)
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"no Ray cluster at {address or 'this machine'}: {error}") from error
    return str(found.dashboard_url or "")


def _require_reachable(address: str) -> None:
    """Raise OSError if nothing listens at HOST:PORT. Ray itself tries for minutes."""
    try:
        where = parse_endpoint(address)
    except ConfigError:
        return  # auto, local or ray://HOST:PORT
    socket.create_connection((where.host, where.port), timeout=_REACHABLE_S).close()


def _exit_code(run: Callable[[], Any]) -> int:
    try:
        run()
    except ray.train.TrainingFailedError as error:
        return _report(error)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit as ended:
        if ended.code not in (0, None):
            raise
        return _INTERRUPTED  # Ray Train answers Ctrl-C with sys.exit(0)
    except ConfigError:
        raise
    except SparseFleetError as error:
        print(f"sparsefleet launch: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def _report(error: Any) -> int:
    """Print what failed on which worker; return the exit code."""
    failures = getattr(error, "worker_failures", None) or {}
    code = 1
    for rank, failure in sorted(failures.items()):
        cause = getattr(failure, "_base_exc", failure)
        print(f"sparsefleet launch: worker {rank} failed: {failure}", file=sys.stderr)
        if isinstance(cause, ScriptFailedError):
            code = cause.code
    if not failures:
        print(f"sparsefleet launch: {error}", file=sys.stderr)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    return code
