"""Dense parameters that every worker holds and updates identically.

A checkpoint stores optimizer state with the names and shapes that tables use, so a checkpoint from
a collective run can be loaded on servers and vice versa. State that differs between workers is
saved for each worker as `<parameter>/<state>@<worker>`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import load, save
from torch import nn

from sparsefleet import optim
from sparsefleet.collective import CollectiveStrategy, World
from sparsefleet.collective.module_preparation import prepare_module
from sparsefleet.collective.sync_batch_norm import NormGroup
from sparsefleet.engine.dense_groups import DenseGroup, OptimizerLike, dense_groups
from sparsefleet.engine.model_checkpoint import LoadRequest
from sparsefleet.engine.model_tensors import ModelTensors, state_on
from sparsefleet.engine.placement import StorePlacement
from sparsefleet.engine.rank_replacement import RankReplacement
from sparsefleet.engine.torch_optimizers import torch_optimizer
from sparsefleet.errors import (
    CheckpointMismatchError,
    ConfigError,
    SparseFleetError,
    code_name_of,
    error_named,
)
from sparsefleet.fleet.board import Board, RankBoard, directory_of_servers
from sparsefleet.fleet.incarnation import Incarnation
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.modes import ModeConfig
from sparsefleet.modes.collective_mode import CollectiveMode
from sparsefleet.modes.mode import Mode
from sparsefleet.modes.mode_setting import RankSetting
from sparsefleet.store import LocalStore, Store
from sparsefleet.store.store_save import DENSE_OPTIMIZERS

if TYPE_CHECKING:
    from sparsefleet.engine.distributed_model import DistributedModel
    from sparsefleet.store.remote_store import WireDtype

__all__ = ["RankPlacement", "RankTensors"]


_NOTE = "collective"
Arrays = dict[str, NDArray[Any]]
# Kind of optimizer -> torch's name for a part of its state -> the tables' name for that part.
_TABLE_NAMES: dict[str, dict[str, str]] = {
    "sgd": {},
    "momentum": {"momentum_buffer": "buffer"},
    "adadelta": {"square_avg": "square", "acc_delta": "delta"},
    "adagrad": {"sum": "sum"},
    "decayed_adagrad": {"moment": "moment"},
    "adam": {"exp_avg": "m", "exp_avg_sq": "v", "step": "step"},
    "adamw": {"exp_avg": "m", "exp_avg_sq": "v", "step": "step"},
    "adamax": {"exp_avg": "m", "exp_inf": "norm", "step": "step"},
    "ftrl": {"squares": "squares", "linear": "linear"},
    "rmsprop": {"square_avg": "square", "grad_avg": "mean", "momentum_buffer": "buffer"},
}
_COUNTED = {"adadelta", "adagrad", "adam", "adamw", "adamax", "rmsprop"}
"""Optimizers for which torch keeps a scalar `step` count."""


class RankPlacement(StorePlacement):
    """The placement of mode "collective": a torch optimizer steps all dense parameters everywhere.

    Rows are on servers; without servers, every worker has all rows. A `sparsefleet.optim`
    description is converted to the equivalent torch optimizer.

    join: connects the workers; called when the model starts.

    >>> from sparsefleet.engine.distributed_model import DistributedModel
    >>> from sparsefleet.modes import CollectiveConfig
    >>> model, config = nn.Linear(2, 1), CollectiveConfig()
    >>> distributed = DistributedModel(
    ...     model, optim.SGD(lr=0.1), config, role=RoleInfo(kind="local"),
    ...     placement=RankPlacement(config.strategy, World.join))
    >>> distributed.start()
    >>> with distributed.step() as step:
    ...     step.backward(model(torch.ones(3, 2)).mean())
    >>> distributed.leave()
    >>> distributed.close()
    """

    def __init__(self, strategy: CollectiveStrategy, join: Callable[[], World]) -> None:
        self._strategy = strategy
        self._join = join
        self._world: World | None = None
        self._replacement: RankReplacement | None = None
        self._norm_group: NormGroup | None = None
        self._training_state: Mapping[str, Any] | None = None
        self._described: list[optim.Optimizer | None] = []
        self._default: optim.Optimizer | None = None
        self._tensors: RankTensors | None = None

    @property
    def world(self) -> World:
        """Return the connected workers; available once the model has started."""
        if self._world is None:
            raise ConfigError("the model is not started: call fleet.init_worker() first")
        return self._world

    # -- made with the model -------------------------------------------------------------------

    def own_optimizer(self, model: nn.Module, optimizer: OptimizerLike) -> OptimizerLike:
        self._described = [group.optimizer for group in dense_groups(model, optimizer)]
        if not self._described:
            raise ConfigError(
                f"{type(model).__name__} has no dense parameters for workers to exchange: train "
                "its tables on servers, for example in mode 'sync'"
            )
        if isinstance(optimizer, optim.Optimizer):
            self._default = optimizer
            return torch_optimizer(optimizer, [p for p in model.parameters() if p.requires_grad])
        return optimizer

    def wire_dtype(self, requested: WireDtype | None) -> WireDtype | None:
        if requested == "bf16":
            raise ConfigError(
                "mode 'collective' does not support wire_dtype='bf16', because its workers set "
                "rows on the servers to exact values: omit wire_dtype, or use a different mode, "
                "such as 'sync'"
            )
        return "float32"

    def groups_by_torch(
        self, groups: Sequence[DenseGroup], role: RoleInfo, mode: str | ModeConfig
    ) -> list[DenseGroup]:
        del role, mode
        return list(groups)

    def flattened(self, groups: Sequence[DenseGroup]) -> dict[str, list[nn.Parameter]]:
        del groups
        return {}

    def tensors(
        self,
        model: nn.Module,
        groups: Sequence[DenseGroup],
        in_tables: Mapping[str, Sequence[str]],
        stepped_by: torch.optim.Optimizer | None,
    ) -> RankTensors:
        del in_tables
        names = {id(p): name for name, p in model.named_parameters()}
        described = {
            names[id(parameter)]: optimizer
            for group, optimizer in zip(groups, self._described, strict=True)
            for parameter in group.parameters
        }
        self._tensors = RankTensors(model, stepped_by, described)
        return self._tensors

    def table_default(
        self, groups: Sequence[DenseGroup], optimizer: OptimizerLike
    ) -> optim.Optimizer | None:
        del groups, optimizer
        return self._described[0] if self._described else self._default

    # -- life ---------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device | None:
        return None if self.world.device.type == "cpu" else self.world.device

    def continues_without_lost(self) -> bool:
        return False  # a sum over workers needs every worker

    def incarnation(self) -> Incarnation:
        return Incarnation()  # losing a rank stops the job

    def join(self, bound: DistributedModel) -> None:
        self._world = self._join()
        self._replacement = RankReplacement.of(bound, self._world, self._strategy)
        bound.replacement = self._replacement
        self._bring_to(bound, self._world.device)
        prepared, self._norm_group = prepare_module(bound.model, self._world, self._strategy)
        if prepared is not bound.model:
            raise ConfigError(
                f"the model itself is a {type(bound.model).__name__}, which sync_batch_norm "
                "replaces: wrap it in an nn.Sequential"
            )

    def board(self, store: Store) -> Board:
        if isinstance(store, LocalStore) and self.world.size > 1:
            return RankBoard(self.world)
        return store

    def rank_setting(self, bound: DistributedModel) -> RankSetting:
        names = {id(p): name for name, p in bound.model.named_parameters()}
        parameters = [p for group in bound.groups for p in group.parameters]
        return RankSetting(
            world=self.world,
            parameters={names[id(p)]: p for p in parameters},
            step=bound.stepping.step_in_place,
            norm_group=self._norm_group,
        )

    def write_first_values(self, bound: DistributedModel) -> None:
        directory = directory_of_servers(bound.store) if bound.role.server_endpoints else None
        if directory is not None:
            self._read(bound, LoadRequest(directory))

    def share_values(self, bound: DistributedModel) -> None:
        """Give every worker the first worker's parameters and buffers; tables are already equal."""
        if self._replacement is not None and self._replacement.catch_up():
            return
        state = [*bound.model.parameters(), *bound.model.buffers()]
        form = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in state)
        mine = hashlib.sha256(form.encode()).digest() + bound.first_step.to_bytes(8, "little")
        gathered = bound.meeting.all_gather(mine)
        for rank, theirs in enumerate(gathered):
            if theirs[:-8] != gathered[0][:-8]:
                raise ConfigError(
                    f"worker {rank} has a model whose parameters or buffers differ from worker "
                    "0's: all workers must create the same model"
                )
        bound.continue_schedule(max(int.from_bytes(part[-8:], "little") for part in gathered))
        self.world.broadcast([tensor.data for tensor in state])
        bound.meeting.barrier()  # nobody trains until all have the same values

    def started(self, mode: Mode) -> None:
        if self._training_state is not None:
            _collective(mode).training.load_state_dict(self._training_state)
        if self._replacement is not None:
            self._replacement.started(mode)

    def finishing(self, mode: Mode) -> None:
        self._training_state = _collective(mode).training.state_dict()

    def settled(self, bound: DistributedModel) -> None:
        """Send the first worker's buffers, such as batch norm statistics, to all workers."""
        self.world.broadcast(list(bound.model.buffers()))

    def failed(self, error: BaseException) -> None:
        """Report the error to the other workers, which cannot continue without this one."""
        if self._world is not None:
            self._world.close(error)

    # -- files --------------------------------------------------------------------------------

    def load(self, bound: DistributedModel, request: LoadRequest) -> None:
        """Read the directory in every worker; all must have access to it."""
        failure: Exception | None = None
        try:
            self._read(bound, request)
        except (SparseFleetError, OSError) as error:
            failure = error
        mine = b"" if failure is None else f"{code_name_of(failure)} {failure}".encode()
        errors = bound.meeting.all_gather(mine)
        if failure is not None:
            raise failure
        for rank, text in enumerate(errors):
            if text:
                code, _, message = text.decode().partition(" ")
                raise error_named(code, f"in worker {rank}: {message}")

    def collect(self) -> None:
        if self._strategy.local_sgd is not None and self.world.size > 1:
            assert self._tensors is not None
            self._tensors.gather(self.world)

    def notes_to_save(self, mode: Mode, groups: Sequence[DenseGroup]) -> dict[str, Any]:
        kinds = {
            group.table: described.kind
            for group, described in zip(groups, self._described, strict=True)
            if described is not None
        }
        return {_NOTE: _collective(mode).training.state_dict(), DENSE_OPTIMIZERS: kinds}

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        self._training_state = notes.get(_NOTE)

    def fitted(self, tensors: dict[str, Any], rank: int) -> dict[str, Any]:
        assert self._tensors is not None
        # Only with LocalSGD may the state of optimizers differ between workers.
        return self._tensors.fitted(tensors, 0 if self._strategy.local_sgd is None else rank)

    # -- inside -------------------------------------------------------------------------------

    def _read(self, bound: DistributedModel, request: LoadRequest) -> None:
        with_tables = not bound.role.server_endpoints or bound.role.is_first_worker
        self.read_checkpoint(bound, request, with_tables=with_tables)

    def _bring_to(self, bound: DistributedModel, device: torch.device) -> None:
        """Move the model, and optimizer state that was loaded earlier, to the device."""
        bound.model.to(device)
        optimizer = bound.stepping.optimizer
        for state in () if optimizer is None else optimizer.state.values():
            for part, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[part] = state_on(value, device)


def _collective(mode: Mode) -> CollectiveMode:
    assert isinstance(mode, CollectiveMode)
    return mode


class RankTensors(ModelTensors):
    """All parameters and buffers, with the state of the torch optimizer.

    described: each parameter's `sparsefleet.optim` description; None if only torch implements the
        optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        stepped_by: torch.optim.Optimizer | None,
        described: Mapping[str, optim.Optimizer | None],
    ) -> None:
        super().__init__(model, {}, stepped_by)
        self._described = described
        self._rank = 0
        self._others: Arrays = {}

    def gather(self, world: World) -> None:
        """Send state that differs between workers to the first worker; all workers must call it."""
        self._rank = world.rank
        state = {name: array for name, array in self._named(_everything).items() if "/" in name}
        gathered = world.all_gather_bytes(save(state) if state and world.rank else b"")
        self._others = {
            f"{name}@{rank}": array
            for rank, data in enumerate(gathered)
            if data
            for name, array in load(data).items()
        }

    def copy_own(self, only: Callable[[str], bool]) -> Arrays:
        others = {n: a for n, a in self._others.items() if only(n.rpartition("/")[0])}
        return self._named(only) | others

    def fitted(self, arrays: Mapping[str, NDArray[Any]], rank: int) -> Arrays:
        """Return a checkpoint's arrays under torch's names.

        Where the state differs between workers, the state of worker `rank` is returned.

        Raises CheckpointMismatchError if the state belongs to a different optimizer.
        """
        own = {name: array for name, array in arrays.items() if "@" not in name}
        mark = f"@{rank}"
        own |= {n.removesuffix(mark): a for n, a in arrays.items() if n.endswith(mark)}
        found = {name: array for name, array in own.items() if "/" not in name}
        for name, described in self._described.items():
            state = {
                key.rpartition("/")[2]: array
                for key, array in own.items()
                if key.rpartition("/")[0] == name
            }
            for part, array in _for_torch(name, described, state).items():
                found[f"{name}/{part}"] = array
        return found

    def _named(self, only: Callable[[str], bool]) -> Arrays:
        copies = super().copy_own(only)
        for name, described in self._described.items():
            if name not in copies or described is None:
                continue
            shape = copies[name].shape
            for part, table_name in _names_of(described).items():
                state = copies.pop(f"{name}/{part}", np.zeros((), np.float32))
                whole = np.broadcast_to(state.astype(np.float32), shape)
                copies[f"{name}/{table_name}"] = np.ascontiguousarray(whole)
        return copies


def _names_of(described: optim.Optimizer) -> dict[str, str]:
    names = _TABLE_NAMES[described.kind]
    if isinstance(described, optim.RMSprop):
        wanted = {"square_avg", *(["grad_avg"] if described.centered else [])}
        wanted |= {"momentum_buffer"} if described.momentum > 0 else set()
        return {part: name for part, name in names.items() if part in wanted}
    return names


def _for_torch(
    name: str, described: optim.Optimizer | None, state: Mapping[str, NDArray[Any]]
) -> Mapping[str, NDArray[Any]]:
    """Return the state under torch's names.

    If the checkpoint has no state, return an empty dict; the optimizer then starts with new state.
    """
    if described is None or not state:
        return state
    names = _names_of(described)
    missing = sorted(set(names.values()) - state.keys())
    if missing:
        raise CheckpointMismatchError(
            f"'{name}': expected the state '{missing[0]}' of {type(described).__name__}, found "
            f"{', '.join(sorted(state))}: the checkpoint belongs to a different optimizer"
        )
    found = {part: state[table_name] for part, table_name in names.items()}
    if described.kind in _COUNTED:
        counted = np.ravel(state.get("step", np.zeros(1, np.float32)))
        found["step"] = counted[:1].reshape(()).astype(np.float32)
    return found


def _everything(_: str) -> bool:
    return True
