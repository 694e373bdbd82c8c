"""A model whose dense parameters every worker holds and steps itself, alike on all of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.collective import NormGroup, World, prepare_module
from sparsefleet.errors import ConfigError, SparseFleetError, code_name_of, error_named
from sparsefleet.fleet.board import Board, RankBoard
from sparsefleet.fleet.dense_optimizer import DenseGroup, dense_groups
from sparsefleet.fleet.distributed_model import DistributedModel
from sparsefleet.fleet.model_checkpoint import Predicate, load_model
from sparsefleet.fleet.model_tensors import state_on
from sparsefleet.fleet.rank_tensors import RankTensors
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fleet.server_notes import directory_of_servers
from sparsefleet.fleet.torch_optimizers import torch_optimizer
from sparsefleet.fleet.trainable import require_started
from sparsefleet.modes import CollectiveConfig, CollectiveMode, RankSetting
from sparsefleet.store import Store
from sparsefleet.store.store_save import DENSE_OPTIMIZERS

__all__ = ["CollectiveModel"]

_NOTE = "collective"


class CollectiveModel(DistributedModel):
    """A `DistributedModel` for mode "collective"; made by `fleet.distribute`.

    Rows are on servers or, without any, whole in every worker. Dense parameters are stepped by an
    optimizer of torch in every worker; a description of ours becomes one.

    join: meets the other workers; called by `start()`.

    >>> model = nn.Linear(2, 1)
    >>> distributed = CollectiveModel(
    ...     model, optim.SGD(lr=0.1), CollectiveConfig(), role=RoleInfo(kind="local"),
    ...     join=World.join)
    >>> distributed.start()
    >>> with distributed.step() as step:
    ...     step.backward(model(torch.ones(3, 2)).mean())
    >>> distributed.leave()
    >>> distributed.close()
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | optim.Optimizer,
        mode: CollectiveConfig,
        *,
        role: RoleInfo,
        join: Callable[[], World],
        **settings: Any,
    ) -> None:
        self._strategy = mode.strategy
        self._join = join
        self._world: World | None = None
        self._board: Board | None = None
        self._norm_group: NormGroup | None = None
        self._training_state: Mapping[str, Any] | None = None
        self._described = [group.optimizer for group in dense_groups(model, optimizer)]
        self._default = optimizer if isinstance(optimizer, optim.Optimizer) else None
        if isinstance(optimizer, optim.Optimizer):
            trained = [p for p in model.parameters() if p.requires_grad]
            optimizer = torch_optimizer(optimizer, trained) if trained else optimizer
        super().__init__(model, optimizer, mode, role=role, **settings)
        self._rank_tensors = self._make_tensors()
        self.tensors = self._rank_tensors
        if not self._groups:
            raise ConfigError(
                f"{type(model).__name__} has no dense parameter that workers could exchange: "
                "train its tables on servers, in mode 'sync' or another of theirs"
            )

    # -- life ---------------------------------------------------------------------------------

    @property
    def world(self) -> World:
        """The workers, connected to each other; from `start()` on."""
        return require_started(self._world)

    @property
    def board(self) -> Board:
        """That of the servers or, without any, of the workers themselves."""
        return require_started(self._board)

    def start(self) -> None:
        """As `DistributedModel.start`; also meets the other workers. They begin alike."""
        if self.is_started:
            return
        super().start()
        if self._training_state is not None:
            self._collective.training.load_state_dict(self._training_state)

    def finish(self) -> None:
        if self._mode is not None and not self._failed:
            self._training_state = self._collective.training.state_dict()
        super().finish()

    def settle(self) -> None:
        """Also gives all workers the first one's buffers, as the statistics of batch norms."""
        super().settle()
        self.world.broadcast(list(self.model.buffers()))

    def fail(self, error: BaseException) -> None:
        """Also tells the other workers, which could not go on."""
        super().fail(error)
        if self._world is not None:
            self._world.close(error)

    # -- files --------------------------------------------------------------------------------

    def collect(self) -> None:
        if self._strategy.local_sgd is not None and self.world.size > 1:
            self._rank_tensors.gather(self.world)

    def fitted(self, tensors: dict[str, Any]) -> dict[str, Any]:
        # Only with LocalSGD may the state of optimizers differ between workers.
        rank = 0 if self._strategy.local_sgd is None else self.role.index
        return self._rank_tensors.fitted(tensors, rank)

    def notes_to_save(self) -> dict[str, Any]:
        kinds = {
            group.table: described.kind
            for group, described in zip(self._groups, self._described, strict=True)
            if described is not None
        }
        return {_NOTE: self._collective.training.state_dict(), DENSE_OPTIMIZERS: kinds}

    def take_notes(self, notes: Mapping[str, Any]) -> None:
        self._training_state = notes.get(_NOTE)

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        only: Predicate | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        """As `DistributedModel.load`; every worker reads the directory, and must see it."""
        self.finish()
        failure: Exception | None = None
        try:
            self._load(directory, only, storage_options)
        except (SparseFleetError, OSError) as error:
            failure = error
        said = b"" if failure is None else f"{code_name_of(failure)} {failure}".encode()
        told = self.meeting.all_gather(said)
        if failure is not None:
            raise failure
        for rank, text in enumerate(told):
            if text:
                code, _, message = text.decode().partition(" ")
                raise error_named(code, f"in worker {rank}: {message}")
        self._share_values()
        self.start()

    # -- inside -------------------------------------------------------------------------------

    @property
    def _collective(self) -> CollectiveMode:
        mode = self.mode
        assert isinstance(mode, CollectiveMode)
        return mode

    @property
    def _keeps_going(self) -> bool:
        return False  # a sum over workers needs all of them

    def _make_tensors(self) -> RankTensors:
        names = {id(p): name for name, p in self.model.named_parameters()}
        described = {
            names[id(parameter)]: optimizer
            for group, optimizer in zip(self._groups, self._described, strict=True)
            for parameter in group.parameters
        }
        return RankTensors(self.model, self._stepping.optimizer, described)

    def _groups_of_torch(self) -> list[DenseGroup]:
        return self._groups

    def _flattened(self) -> dict[str, list[nn.Parameter]]:
        return {}

    def _table_default(self) -> optim.Optimizer | None:
        return self._described[0] if self._described else self._default

    def _open_store(self) -> Store:
        self._world = self._join()
        self._bring_to(self._world.device)
        prepared, self._norm_group = prepare_module(self.model, self._world, self._strategy)
        if prepared is not self.model:
            raise ConfigError(
                f"the model is itself a {type(self.model).__name__}, which sync_batch_norm "
                "replaces: put it into an nn.Sequential"
            )
        store = super()._open_store()
        self._board = store
        if not self.role.server_endpoints and self._world.size > 1:
            self._board = RankBoard(self._world)
        return store

    @property
    def device(self) -> torch.device | None:
        return None if self.world.device.type == "cpu" else self.world.device

    def _bring_to(self, device: torch.device) -> None:
        """The model, and what was loaded of its optimizer before."""
        self.model.to(device)
        optimizer = self._stepping.optimizer
        for state in () if optimizer is None else optimizer.state.values():
            for part, value in state.items():
                if isinstance(value, torch.Tensor):
                    state[part] = state_on(value, device)

    def _rank_setting(self) -> RankSetting:
        names = {id(p): name for name, p in self.model.named_parameters()}
        parameters = [p for group in self._groups for p in group.parameters]
        return RankSetting(
            world=self.world,
            parameters={names[id(p)]: p for p in parameters},
            step=self._stepping.step_in_place,
            norm_group=self._norm_group,
        )

    def _first_values(self) -> None:
        directory = directory_of_servers(self.store) if self.role.server_endpoints else None
        if directory is not None:
            self._load(directory, None, None)

    def _load(
        self,
        directory: str | os.PathLike[str],
        only: Predicate | None,
        storage_options: Mapping[str, Any] | None,
    ) -> None:
        steps = load_model(
            self,
            directory,
            only=only,
            storage_options=storage_options,
            with_tables=not self.role.server_endpoints or self.role.is_first_worker,
        )
        self._steps = max(self._steps, steps)

    def _share_values(self) -> None:
        """The first worker's parameters and buffers become everybody's; tables are alike."""
        state = [*self.model.parameters(), *self.model.buffers()]
        form = ", ".join(f"{tensor.dtype}{list(tensor.shape)}" for tensor in state)
        mine = hashlib.sha256(form.encode()).digest() + self._steps.to_bytes(8, "little")
        gathered = self.meeting.all_gather(mine)
        for rank, theirs in enumerate(gathered):
            if theirs[:-8] != gathered[0][:-8]:
                raise ConfigError(
                    f"worker {rank} has a model of other parameters or buffers than worker 0: all "
                    "workers must make the same model"
                )
        self._steps = max(int.from_bytes(part[-8:], "little") for part in gathered)
        self.world.broadcast([tensor.data for tensor in state])
        self.meeting.barrier()  # before anybody trains, so that all have the same values
