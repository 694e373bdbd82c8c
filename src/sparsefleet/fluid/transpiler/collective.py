"""Programs of one process made those of ranks that exchange gradients, or parameters."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.collective import CollectiveStrategy, LocalSgdConfig
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.collective.collective_programs import train_together
from sparsefleet.fluid.collective.ranks import Ranks, set_ranks, worker_role
from sparsefleet.fluid.framework import Program, default_main_program, default_startup_program
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.transpiler.collective")

__all__ = ["GradAllReduce", "LocalSGD", "SingleProcessMultiThread"]


class Collective:
    """What both have in common.

    nrings: process groups over which all-reduces are dealt in turn.
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
        """Changes both programs, in place. Ranks wait for each other whatever `wait_port` says."""
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
    """All ranks update by the mean of their gradients, in each step.

    >>> GradAllReduce(2).mode
    'grad_allreduce'
    """

    mode = "grad_allreduce"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)


class LocalSGD(Collective):
    """Each run of the program takes a step alone and then averages the parameters of all ranks.

    A script that runs it every k steps, and a copy made before in between, averages so often.

    >>> LocalSGD(2).mode
    'local_sgd'
    """

    mode = "local_sgd"

    def __init__(self, nrings: int = 2) -> None:
        super().__init__(nrings)

    def _strategy(self) -> CollectiveStrategy:
        return CollectiveStrategy(num_rings=self.nrings, local_sgd=LocalSgdConfig(steps=1))


class SingleProcessMultiThread(GradAllReduce):
    """Threads of one process, of which there is one here: nothing is changed."""

    mode = "single_process_multi_thread"

    def __init__(self) -> None:
        super().__init__(1)

    def _change(self, program: Program, startup: Program, ranks: Ranks) -> None:
        del program, startup, ranks
