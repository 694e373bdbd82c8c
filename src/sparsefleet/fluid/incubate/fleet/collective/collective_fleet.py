"""The fleet object of collective jobs: so far of one process."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Operator, Program, Variable, default_startup_program
from sparsefleet.fluid.incubate.fleet.collective.distributed_strategy import DistributedStrategy
from sparsefleet.fluid.incubate.fleet.collective.train_status import TrainStatus
from sparsefleet.fluid.inference_model import save_inference_model
from sparsefleet.fluid.optimizer import Optimizer
from sparsefleet.fluid.saving import load_persistables, save_persistables

__all__ = ["Collective", "CollectiveOptimizer"]

_PREFIX = "__paddle_fleet_checkpoint__"
_PARAMETERS = "__paddle_fleet_param__"
_STATUS = "fleet_train_status"


class Collective(Fleet):
    """A process of a collective job. With one process it trains as without a fleet."""

    def __init__(self) -> None:
        super().__init__()
        self.main_program: Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None

    def distributed_optimizer(  # type: ignore[override]
        self, optimizer: Optimizer, strategy: DistributedStrategy | None = None
    ) -> CollectiveOptimizer:
        """An optimizer whose `minimize` says what this process runs."""
        if not self.is_initialized:
            raise ConfigError("fleet does not know its role yet: call fleet.init(role) first")
        if self.worker_num() > 1:
            raise ConfigError(
                f"collective training by {self.worker_num()} processes is not supported: use one, "
                "or parameter servers (incubate.fleet.parameter_server)"
            )
        return CollectiveOptimizer(self, optimizer, strategy or DistributedStrategy())

    def init_worker(self) -> None:
        """Nothing is to be done."""

    def stop_worker(self) -> None:
        """Nothing is to be done."""

    def save_persistables(  # type: ignore[override]
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        filename: str | None = None,
    ) -> None:
        """`fluid.io.save_persistables` of the program."""
        save_persistables(executor, dirname, main_program or self.main_program, filename)

    def save_inference_model(  # type: ignore[override]
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        feeded_var_names: str | Sequence[str],
        target_vars: Variable | Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> list[str]:
        """`fluid.io.save_inference_model` of the program."""
        return save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            main_program or self._origin_program,
            export_for_deployment=export_for_deployment,
        )

    def save_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        train_status: TrainStatus,
        main_program: Program | None = None,
        fs: Any = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """A numbered checkpoint below a local `path`; else only the last one stays."""
        del local_cache_path
        _require_local(fs)
        root = Path(path)
        number = max(_numbers(root), default=-1) + 1
        draft, final = root / f"{_PREFIX}.{number}.tmp", root / f"{_PREFIX}.{number}"
        draft.mkdir(parents=True, exist_ok=True)
        self.save_persistables(executor, draft, main_program, _PARAMETERS)
        status = json.dumps({"epoch_no": train_status._epoch_no})
        (draft / _STATUS).write_text(status, encoding="utf-8")
        draft.rename(final)
        if not remain_all_checkpoint:
            self.clean_redundant_check_points(root)

    def load_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        trainer_id: int,
        main_program: Program | None = None,
        fs: Any = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """The last checkpoint; None if there is none."""
        del trainer_id, local_cache_path
        _require_local(fs)
        root = Path(path)
        number = max(_numbers(root), default=-1)
        if number < 0:
            if not ignore_empty:
                raise AssertionError(f"there is no checkpoint in {root}")
            return None
        folder = root / f"{_PREFIX}.{number}"
        load_persistables(executor, folder, main_program or self.main_program, _PARAMETERS)
        status = json.loads((folder / _STATUS).read_text(encoding="utf-8"))
        return TrainStatus(int(status["epoch_no"]))

    def clean_redundant_check_points(
        self, root_path: str | os.PathLike[str], fs: Any = None, checkpoint_num: int = 1
    ) -> None:
        """Removes all but the last ones."""
        _require_local(fs)
        root = Path(root_path)
        for number in sorted(_numbers(root))[: -max(checkpoint_num, 1)]:
            shutil.rmtree(root / f"{_PREFIX}.{number}")


class CollectiveOptimizer:
    """What `Collective.distributed_optimizer` gives."""

    def __init__(
        self, fleet: Collective, optimizer: Optimizer, strategy: DistributedStrategy
    ) -> None:
        self._fleet = fleet
        self._optimizer = optimizer
        self._strategy = strategy

    def minimize(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> tuple[list[Operator], list[tuple[Any, Variable]]]:
        """The optimizer's `minimize`."""
        ops, pairs = self._optimizer.minimize(loss, startup_program, parameter_list, no_grad_set)
        assert loss.block is not None
        self._fleet.main_program = self._fleet._origin_program = loss.block.program
        self._fleet.startup_program = startup_program or default_startup_program()
        return ops, list(pairs)


def _numbers(root: Path) -> list[int]:
    """Of the checkpoints there are."""
    names = [path.name.rpartition(".") for path in root.glob(f"{_PREFIX}.*")]
    return [int(number) for prefix, _, number in names if prefix == _PREFIX and number.isdigit()]


def _require_local(fs: Any) -> None:
    if fs is not None and type(fs).__name__ != "LocalFS":
        raise ConfigError(f"checkpoints are kept in local folders here, got fs={fs!r}")
