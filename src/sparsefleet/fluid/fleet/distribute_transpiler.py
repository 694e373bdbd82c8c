"""Convert a single-process program into programs for servers, workers or ranks; Communicator."""

from __future__ import annotations

import logging
import math
import socket
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeVar

from sparsefleet.collective import CollectiveStrategy, LocalSgdConfig
from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.collective.collective_programs import add_broadcast, train_together
from sparsefleet.fluid.collective.ranks import Ranks, check_nodes, set_ranks, worker_role
from sparsefleet.fluid.distributed.distribute_program import (
    ProgramServer,
    model_source,
    train_on_servers,
)
from sparsefleet.fluid.distributed.update_rules import ModelSource
from sparsefleet.fluid.fleet import DistributeTranspilerConfig, ServerRuntimeConfig
from sparsefleet.fluid.framework import (
    Program,
    Variable,
    default_main_program,
    default_startup_program,
)
from sparsefleet.fluid.paths import unknown_names
from sparsefleet.modes import GeoConfig, ModeConfig

__all__ = [
    "Communicator",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "DistributedMode",
    "GeoSgdTranspiler",
    "GradAllReduce",
    "LocalSGD",
    "ServerRuntimeConfig",
    "SingleProcessMultiThread",
    "memory_optimize",
    "release_memory",
    "slice_variable",
    "wait_server_ready",
]


__getattr__ = unknown_names("fluid.transpiler.distribute_transpiler")


Part = TypeVar("Part")

# Programs per worker so far; all processes in a job build the same programs in the same order.
_numbers: Counter[tuple[str, int]] = Counter()


class DistributedMode(IntEnum):
    """Fluid's numeric codes for how servers apply gradients."""

    SYNC = 0
    ASYNC = 1
    HALF_ASYNC = 2
    GEO = 3


class DistributeTranspiler:
    """Converts a minimized program into the programs of a parameter-server job.

    >>> from sparsefleet import fluid
    >>> main, startup = fluid.Program(), fluid.Program()
    >>> with fluid.program_guard(main, startup):
    ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    ...     _ = fluid.optimizer.SGD(0.1).minimize(loss)
    >>> transpiler = DistributeTranspiler()
    >>> transpiler.transpile(0, main, "127.0.0.1:6174", trainers=2, startup_program=startup)
    >>> [op.type for op in transpiler.get_pserver_program("127.0.0.1:6174").global_block().ops]
    ['listen_and_serve']
    >>> transpiler.get_trainer_program() is main
    True
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        if config is not None and not isinstance(config, DistributeTranspilerConfig):
            raise TypeError(
                f"config must be a DistributeTranspilerConfig, got {type(config).__name__}"
            )
        self.config = config or DistributeTranspilerConfig()
        self._program: Program | None = None
        self._source: ModelSource | None = None
        self._servers: dict[str, ProgramServer] = {}
        self._current_endpoint = ""

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str | list[str] = 1,
        sync_mode: bool = True,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Convert both programs, in place, into the programs of worker `trainer_id`.

        pservers: every server as "host:port", comma-separated. trainers: the number of workers;
            without servers, every rank as "host:port".
        sync_mode: whether all workers step together. If False, each worker steps independently,
            unless the config says otherwise.
        """
        self._program = program or default_main_program()
        self._current_endpoint = current_endpoint
        if self.config.mode != "pserver":
            startup = startup_program or default_startup_program()
            self._transpile_for_ranks(trainer_id, trainers, startup)
            return
        if isinstance(trainers, bool) or not isinstance(trainers, int):
            raise ConfigError(f"trainers must be an int, the number of workers, got {trainers!r}")
        endpoints = tuple(text.strip() for text in pservers.split(",") if text.strip())
        startup = startup_program or default_startup_program()
        role = RoleInfo(
            kind="worker", index=trainer_id, worker_num=trainers, server_endpoints=endpoints
        )
        _numbers[pservers, trainer_id] += 1
        mode = self._mode(sync_mode)
        self._source = model_source(
            self._program,
            startup,
            mode,
            name=f"transpiled-{_numbers[pservers, trainer_id]}",
            min_block_size=self.config.min_block_size,
        )
        train_on_servers(self._program, startup, self._source, mode, role)
        self._servers = {
            endpoint: ProgramServer(
                RoleInfo(
                    kind="server",
                    index=index,
                    worker_num=trainers,
                    server_endpoints=endpoints,
                    current_endpoint=endpoint,
                ),
                self._source,
            )
            for index, endpoint in enumerate(endpoints)
        }

    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """Return the worker's program; its first run always waits for the servers."""
        del wait_port
        return self._transpiled(self._program)

    def get_pserver_program(self, endpoint: str) -> Program:
        """Return the program for the server at `endpoint`, which serves until the job ends."""
        return self._server(endpoint).main_program()

    def get_pserver_programs(self, endpoint: str) -> tuple[Program, Program]:
        """Return the server's program and its startup program."""
        return self.get_pserver_program(endpoint), self.get_startup_program(endpoint)

    def get_startup_program(
        self,
        endpoint: str,
        pserver_program: Program | None = None,
        startup_program: Program | None = None,
    ) -> Program:
        """Return the startup program for the server at `endpoint`."""
        del pserver_program, startup_program
        return self._server(endpoint).startup_program()

    def _mode(self, sync_mode: bool) -> str | ModeConfig:
        config = self.config
        if config.completely_not_async or (sync_mode and config.sync_mode):
            return "sync"
        if config.geo_sgd_mode:
            return GeoConfig(push_interval_steps=config.geo_sgd_need_push_nums)
        if config.runtime_split_send_recv and not config.half_async:
            return "async"
        return "half_async"  # a worker sends and fetches in every step

    def _transpile_for_ranks(
        self, trainer_id: int, trainers: int | str | list[str], startup: Program
    ) -> None:
        """Prepare the programs for ranks.

        In mode "nccl2", ranks connect in the startup program, and a CompiledProgram whose strategy
        has num_trainers trains with the other ranks. In mode "collective", the program itself
        trains with the other ranks.
        """
        program, config = self._transpiled(self._program), self.config
        if config.collective_mode == "single_process_multi_thread":
            return
        if config.mode not in ("nccl2", "collective") or not isinstance(trainers, (str, list)):
            raise ConfigError(
                'mode must be "pserver", "nccl2" or "collective"; for the last two, trainers must '
                f"list the endpoints of all ranks; got mode {config.mode!r} and trainers "
                f"{trainers!r}"
            )
        endpoints = trainers.split(",") if isinstance(trainers, str) else list(trainers)
        if config.mode == "collective":
            kinds = {"grad_allreduce": GradAllReduce, "local_sgd": LocalSGD}
            if config.collective_mode not in kinds:
                raise ConfigError(f"invalid collective_mode: {config.collective_mode!r}")
            transpiler = kinds[config.collective_mode](config.nccl_comm_num)
            transpiler.transpile(startup, program, trainer_id, endpoints, self._current_endpoint)
            return
        ranks = set_ranks(Ranks(worker_role(trainer_id, endpoints)))
        settings = ("nccl_comm_num", "use_hierarchical_allreduce")
        program._exchange_settings = {name: getattr(config, name) for name in settings}
        inner = config.hierarchical_allreduce_inter_nranks
        program._exchange_settings["hierarchical_allreduce_inter_nranks"] = inner
        if config.use_hierarchical_allreduce:
            check_nodes(inner, ranks)
        if ranks.size > 1:
            add_broadcast(startup, ranks)

    def _server(self, endpoint: str) -> ProgramServer:
        servers = self._transpiled(self._servers or None)
        if endpoint not in servers:
            raise ConfigError(
                f"{endpoint!r} is not one of the pservers given to transpile: {', '.join(servers)}"
            )
        return servers[endpoint]

    def _transpiled(self, part: Part | None) -> Part:
        if part is None:
            raise ConfigError("there is no program yet; call transpile() first")
        return part


class Collective:
    """Base class for the transpilers of collective jobs.

    nrings: number of process groups that all-reduce operations use in turn.
    """

    mode = ""

    def __init__(self, nrings: int) -> None:
        self.nrings = nrings

    def transpile(
        self,
        startup_program: Program | None,
        main_program: Program | None,
        rank: int,
        endpoints: str | Sequence[str],
        current_endpoint: str,
        wait_port: bool = True,
    ) -> None:
        """Convert both programs, in place. Ranks wait for each other regardless of `wait_port`."""
        del wait_port
        known = endpoints.split(",") if isinstance(endpoints, str) else list(endpoints)
        if not 0 <= rank < len(known):
            raise ConfigError(f"rank must be in 0..{len(known) - 1}, got {rank}")
        if current_endpoint not in known:
            raise ConfigError(f"current endpoint {current_endpoint} is not in {known}")
        self._change(
            main_program or default_main_program(),
            startup_program or default_startup_program(),
            set_ranks(Ranks(worker_role(rank, known))),
        )

    def _change(self, program: Program, startup: Program, ranks: Ranks) -> None:
        train_together(program, startup, ranks, self._strategy())

    def _strategy(self) -> CollectiveStrategy:
        return CollectiveStrategy(num_rings=self.nrings)


class GradAllReduce(Collective):
    """Makes all ranks update with the mean of their gradients in every step.

    >>> GradAllReduce(2).mode
    'grad_allreduce'
    """

    mode = "grad_allreduce"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)


class LocalSGD(Collective):
    """Makes each run of the program take a local step and then average the parameters of all ranks.

    To average only every k steps, run this program every k steps and, in between, a copy made
    before the conversion.

    >>> LocalSGD(2).mode
    'local_sgd'
    """

    mode = "local_sgd"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)

    def _strategy(self) -> CollectiveStrategy:
        return CollectiveStrategy(num_rings=self.nrings, local_sgd=LocalSgdConfig(steps=1))


class SingleProcessMultiThread(GradAllReduce):
    """Accepted for compatibility with Fluid scripts.

    Has no effect, since a process trains in one thread.
    """

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)

    def _change(self, program: Program, startup: Program, ranks: Ranks) -> None:
        del program, startup, ranks


class GeoSgdTranspiler(DistributeTranspiler):
    """Makes workers train on local copies and exchange deltas every few steps (GEO-SGD)."""

    def __init__(self, config: DistributeTranspilerConfig | None = None) -> None:
        super().__init__(config)
        self.config.geo_sgd_mode = True
        self.config.sync_mode = False

    def transpile(
        self,
        trainer_id: int,
        program: Program | None = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str | list[str] = 1,
        sync_mode: bool = False,
        startup_program: Program | None = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Do the same as `DistributeTranspiler.transpile`, in GEO mode."""
        del sync_mode
        super().transpile(
            trainer_id, program, pservers, trainers, False, startup_program, current_endpoint
        )


def slice_variable(
    var_list: Sequence[Variable], slice_count: int, min_block_size: int
) -> list[str]:
    """Split variables into blocks of whole rows, as Fluid does; return names "x:number:elements".

    slice_count: number of servers. min_block_size: elements in the smallest block.

    >>> slice_variable([Variable("x", [10, 3])], 2, 6)
    ['x:0:15', 'x:1:15']
    """
    blocks = []
    for var in var_list:
        elements = math.prod(var.shape)
        most = max(1, elements // min_block_size)
        count = min(slice_count, most)
        width = math.prod(var.shape[1:])
        size = math.ceil(elements / count)
        if len(var.shape) >= 2 and size % width:
            size += width - size % width
        for number in range(math.ceil(elements / size)):
            blocks.append(f"{var.name}:{number}:{min(size, elements - number * size)}")
    return blocks


def memory_optimize(
    input_program: Program,
    skip_opt_set: Any = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = True,
) -> None:
    """Do nothing, as in Fluid since 1.6, because torch frees unreferenced tensors."""
    del input_program, skip_opt_set, print_log, level, skip_grads
    warnings.warn("memory_optimize is deprecated and has no effect", stacklevel=2)


def release_memory(input_program: Program, skip_opt_set: Any = None) -> None:
    """Do nothing, as in Fluid since 1.6."""
    del input_program, skip_opt_set
    warnings.warn("release_memory is deprecated and has no effect", stacklevel=2)


_log = logging.getLogger("sparsefleet.fluid")
_RETRY_S = 1.0


class Communicator:
    """Starts and stops the exchange between a worker's program and its servers.

    A program from a transpiler or fleet communicates from its first run, so `start` has no effect
    on it; `stop` waits until everything sent has arrived.
    """

    def __init__(
        self,
        program: Program,
        mode: Any = None,
        kwargs: dict[str, Any] | None = None,
        envs: dict[str, str] | None = None,
    ) -> None:
        if not isinstance(program, Program):
            raise AssertionError(f"Communicator takes a fluid.Program, got {program!r}")
        del mode, kwargs, envs
        self._program = program
        self._is_running = False

    def start(self) -> None:
        """Mark the communicator as running."""
        self._is_running = True

    def stop(self) -> None:
        """Wait until the servers have received everything that was sent."""
        role = self._program._distributed
        if self._is_running and role is not None:
            role.close()
        self._is_running = False

    def is_running(self) -> bool:
        """Return whether the communicator is running."""
        return self._is_running


def wait_server_ready(endpoints: Sequence[str]) -> None:
    """Wait until each of these servers accepts connections."""
    if not isinstance(endpoints, (list, tuple)):
        raise AssertionError(f"endpoints must be a list of 'host:port', got {endpoints!r}")
    waiting = [parse_endpoint(one) for one in endpoints]
    while waiting:
        waiting = [one for one in waiting if not _accepts(one.host, one.port)]
        if waiting:
            _log.info("waiting for servers: %s", ", ".join(map(str, waiting)))
            time.sleep(_RETRY_S)


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=_RETRY_S).close()
    except OSError:
        return False
    return True
