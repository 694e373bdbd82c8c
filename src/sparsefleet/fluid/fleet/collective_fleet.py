"""The fleet object for collective jobs, and the checkpoints that it writes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsefleet.errors import CheckpointError
from sparsefleet.fleet import RoleInfo
from sparsefleet.fluid.collective.ranks import Ranks, set_ranks
from sparsefleet.fluid.executor.compiler import CompiledProgram
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet import Fleet, PaddleCloudRoleMaker, RoleMakerBase
from sparsefleet.fluid.fleet.collective_strategy import DistributedStrategy
from sparsefleet.fluid.fleet.fleet_optimizer import CollectiveOptimizer
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.io.file_systems import FS, LocalFS
from sparsefleet.fluid.io.inference_model import save_inference_model
from sparsefleet.fluid.io.saving import load_persistables, save_persistables

if TYPE_CHECKING:
    from sparsefleet.collective import World

__all__ = ["CheckPoints", "Collective", "TrainStatus", "fleet"]


_log = logging.getLogger("sparsefleet.fluid")


class Collective(Fleet):
    """One rank of a collective job. With a single process, training is the same as without a fleet.

    `main_program` and `startup_program` are the programs that this rank runs after `minimize`;
    `_origin_program` is a copy that trains alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.main_program: CompiledProgram | Program | None = None
        self.startup_program: Program | None = None
        self._origin_program: Program | None = None
        self._transpiled_program: Program | None = None
        self._ranks: Ranks | None = None

    def init(
        self,
        role_maker: RoleMakerBase | RoleInfo | None = None,
        *,
        is_collective: bool = True,
        world: World | None = None,
    ) -> None:
        """Determine the rank of this process from `role_maker` or the environment.

        world: the job's ranks, if they are already connected.
        """
        role_maker = role_maker or PaddleCloudRoleMaker(is_collective=True)
        super().init(role_maker, is_collective=is_collective, world=world)
        self._ranks = set_ranks(Ranks(self.role, world))

    @property
    def ranks(self) -> Ranks:
        """Return the job's ranks, which connect when a program is first run."""
        if self._ranks is None:
            raise RuntimeError("fleet is not initialized; call fleet.init(role) first")
        return self._ranks

    def distributed_optimizer(
        self, optimizer: Any, strategy: DistributedStrategy | None = None
    ) -> CollectiveOptimizer:
        """Return an optimizer whose `minimize` sets the programs that this rank runs."""
        return CollectiveOptimizer(optimizer, strategy, self)

    # -- calls that only servers and their workers need -----------------------------------------

    def init_worker(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("init_worker")

    def run_worker(self, main_programs: Any = None, scopes: Any = None) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        del main_programs, scopes
        self._warn_of("run_worker")

    def init_server(self, model_dir: str | os.PathLike[str] | None = None) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        del model_dir
        self._warn_of("init_server")

    def run_server(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("run_server")

    def stop_worker(self) -> None:
        """Log a warning and do nothing, since a collective job has no servers."""
        self._warn_of("stop_worker")

    def _warn_of(self, call: str) -> None:
        _log.warning("you should not call '%s' in collective mode; it does nothing", call)

    # -- collectives ------------------------------------------------------------------------------

    def settle(self) -> None:
        """Bring all ranks to the same values, for example before saving. Must be called by all
        ranks.

        Local SGD averages the parameters; a rank that had less data gets the other ranks' values.
        """
        self.ranks.part()

    def barrier_worker(self) -> None:
        """Return when every rank has called this method."""
        self.settle()
        self.ranks.world.barrier("fleet.barrier_worker")

    def all_gather(self, data: bytes) -> list[bytes]:
        """Return the values of all ranks, by rank. Must be called by all ranks."""
        self.settle()
        return self.ranks.world.all_gather_bytes(data)

    # -- files ----------------------------------------------------------------------------------

    def save_persistables(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        filename: str | None = None,
    ) -> None:
        """Call `fluid.io.save_persistables` for the program, by default `_origin_program`."""
        program = self._checked("save_persistables", executor, main_program, self._origin_program)
        save_persistables(executor, dirname, program, filename)

    def save_inference_model(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        feeded_var_names: str | Sequence[str],
        target_vars: Variable | Sequence[Variable],
        main_program: Program | None = None,
        export_for_deployment: bool = True,
    ) -> list[str]:
        """Call `fluid.io.save_inference_model` for the program, by default `_origin_program`."""
        program = self._checked(
            "save_inference_model", executor, main_program, self._origin_program
        )
        return save_inference_model(
            dirname,
            feeded_var_names,
            target_vars,
            executor,
            program,
            export_for_deployment=export_for_deployment,
        )

    def save_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        train_status: TrainStatus,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        remain_all_checkpoint: bool = True,
    ) -> None:
        """Save a checkpoint under `path`, atomically. Should be called by one rank.

        fs: the file system; None means the local file system. remain_all_checkpoint: if False, keep
        only the last checkpoint.
        """
        program = self._checked(
            "save_check_point", executor, main_program, self._transpiled_program
        )
        points = CheckPoints(path, fs)
        points.add(
            train_status,
            lambda folder: self.save_persistables(executor, folder, program, PARAMETERS),
            local_cache_path,
        )
        if not remain_all_checkpoint:
            points.keep(1)

    def load_check_point(
        self,
        executor: Executor,
        path: str | os.PathLike[str],
        trainer_id: int,
        main_program: Program | None = None,
        fs: FS | None = None,
        local_cache_path: str = ".cache",
        ignore_empty: bool = True,
    ) -> TrainStatus | None:
        """Load the last checkpoint into the scope of this rank; return None if there is none."""
        program = self._checked(
            "load_check_point", executor, main_program, self._transpiled_program
        )
        points = CheckPoints(path, fs)
        if points.last() < 0:
            if not ignore_empty:
                raise AssertionError(f"there is no checkpoint in {os.fspath(path)}")
            return None
        return points.load(
            points.last(),
            lambda folder: load_persistables(executor, folder, program, PARAMETERS),
            local_cache_path,
            trainer_id,
        )

    def clean_redundant_check_points(
        self, root_path: str | os.PathLike[str], fs: FS | None = None, checkpoint_num: int = 1
    ) -> None:
        """Remove all but the last `checkpoint_num` checkpoints."""
        CheckPoints(root_path, fs).keep(checkpoint_num)

    def _checked(self, call: str, executor: Any, given: Any, usual: Program | None) -> Program:
        program = usual if given is None else given
        if not isinstance(executor, Executor):
            raise AssertionError(f"fleet.{call}: expected a fluid.Executor, got {executor!r}")
        if not isinstance(program, Program):
            raise AssertionError(f"fleet.{call}: expected a fluid.Program, got {program!r}")
        return program


fleet = Collective()
"""This process's fleet object for collective training."""


class TrainStatus:
    """The training status: the last finished epoch, or -1 before the first epoch finishes.

    >>> TrainStatus(3).next()
    4
    """

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """Return the number of the epoch to resume with."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)

    def __repr__(self) -> str:
        return f"TrainStatus({self._epoch_no})"


PARAMETERS = "_paddle_fleet_param__"

_PREFIX = "__paddle_fleet_checkpoint__"

_STATUS = "fleet_train_status"


class CheckPoints:
    """The checkpoints under `path` in a file system; None means the local file system.

    >>> CheckPoints("/no/such/folder").last()
    -1
    """

    def __init__(self, path: str | os.PathLike[str], fs: FS | None = None) -> None:
        self._root = os.fspath(path)
        self._fs = LocalFS() if fs is None else fs

    def numbers(self) -> list[int]:
        """Return the numbers of the complete checkpoints, in order."""
        names = [name.rpartition(".") for name in self._fs.list_dirs(self._root)]
        return sorted(int(end) for prefix, _, end in names if prefix == _PREFIX and end.isdigit())

    def last(self) -> int:
        """Return the highest checkpoint number, or -1 if there are no checkpoints."""
        return max(self.numbers(), default=-1)

    def add(self, status: TrainStatus, save: Callable[[str], None], cache: str) -> int:
        """Add a checkpoint, which becomes visible once it is complete; return its number.

        save: writes the parameters into a folder. cache: a local folder for temporary files, used
            if `path` is remote.
        """
        fs, number = self._fs, self.last() + 1
        fs.mkdir(self._root)
        draft = f"{self._path(number)}.tmp"
        folder = f"{cache}/{_PREFIX}.{number}.saved_cache" if fs.need_upload_download() else draft
        LocalFS().delete(folder)
        os.makedirs(folder)
        save(folder)
        note = json.dumps({"epoch_no": status._epoch_no})
        (Path(folder) / _STATUS).write_text(note, encoding="utf-8")
        if fs.need_upload_download():
            fs.delete(draft)
            fs.upload(folder, draft)
            LocalFS().delete(folder)
        fs.mv(draft, self._path(number))
        return number

    def load(
        self, number: int, load: Callable[[str], None], cache: str, trainer_id: int
    ) -> TrainStatus:
        """Load a checkpoint; `load` reads the parameters from a folder."""
        folder = self._path(number)
        if self._fs.need_upload_download():
            near = f"{cache}/{_PREFIX}.{number}.load_cache.{trainer_id}"
            LocalFS().delete(near)
            os.makedirs(os.path.dirname(near), exist_ok=True)
            self._fs.download(folder, near)
            folder = near
        status = _status_in(Path(folder))
        load(folder)
        return status

    def keep(self, count: int) -> None:
        """Remove all but the last `count` checkpoints; at least one is kept."""
        for number in self.numbers()[: -max(count, 1)]:
            self._fs.delete(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._root}/{_PREFIX}.{number}"


def _status_in(folder: Path) -> TrainStatus:
    path = folder / _STATUS
    if not path.is_file():
        return TrainStatus()
    try:
        epoch = json.loads(path.read_text(encoding="utf-8"))["epoch_no"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{path}: expected JSON with an "epoch_no": {error}') from error
    if not isinstance(epoch, int) or epoch < 0:
        raise CheckpointError(f'{path}: "epoch_no" must be an int >= 0, got {epoch!r}')
    return TrainStatus(epoch)
