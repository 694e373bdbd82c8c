"""The fleet API of Fluid's older parameter server (pslib), on the same engine."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.fleet import AsyncStrategy, DistributedStrategy, DistributeTranspilerConfig
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet, ProgramOptimizer
from sparsefleet.fluid.framework import Program, Variable, default_startup_program
from sparsefleet.fluid.framework.scope import Scope, global_scope
from sparsefleet.fluid.io.saving import TableLayout, load_persistables
from sparsefleet.fluid.operators.embedding import embedding, embedding_of_ids
from sparsefleet.fluid.optimizer.optimizer import Optimizer

__all__ = ["FLEET_GLOBAL_DICT", "PslibFleet", "PslibOptimizer", "fleet", "fleet_embedding"]


class PslibFleet(ProgramFleet):
    """Trains asynchronously, regardless of pslib's settings.

    Tables are identified by their parameters' names, not by numbers.
    """

    def distributed_optimizer(
        self,
        optimizer: Optimizer,
        strategy: Mapping[str, Any]
        | DistributedStrategy
        | DistributeTranspilerConfig
        | None = None,
    ) -> PslibOptimizer:
        """Return an optimizer whose `minimize` accepts several losses.

        If `strategy` is a dict of pslib's settings, training is asynchronous.
        """
        if strategy is None or isinstance(strategy, Mapping):
            strategy = AsyncStrategy()
        made = super().distributed_optimizer(optimizer, strategy)
        return PslibOptimizer(self, optimizer, made.strategy)

    def init_server(self, model_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        """Do the same as `ProgramFleet.init_server`; pslib's settings for reading are ignored."""
        del settings
        super().init_server(model_dir)

    def save_persistables(
        self,
        executor: Executor,
        dirname: str | os.PathLike[str],
        main_program: Program | None = None,
        *,
        table_layout: TableLayout | None = None,
        **settings: Any,
    ) -> None:
        """Do the same as `ProgramFleet.save_persistables`.

        Everything is saved, whatever pslib's `mode` is.
        """
        if settings.get("mode", 0) not in (0, 1, 2, 3):
            raise ConfigError(f"mode must be one of pslib's modes 0 to 3, got {settings['mode']!r}")
        super().save_persistables(executor, dirname, main_program, table_layout=table_layout)

    def save_model(self, model_dir: str | os.PathLike[str], **settings: Any) -> None:
        """Save all tables and dense parameters; see `save_persistables`."""
        self.save_persistables(Executor(), model_dir, **settings)

    def load_model(self, model_dir: str | os.PathLike[str], **settings: Any) -> None:
        """Load files saved by `save_model` on the first worker. Must be called by all workers."""
        del settings
        if self.is_first_worker():
            load_persistables(Executor(), model_dir, self._minimized(self.main_program))
        self.barrier_worker()

    def shrink_sparse_table(self) -> None:
        """Remove the rows selected by the tables' eviction rules.

        Fluid programs do not declare such rules.
        """
        model = self.model
        for table in model.tables:
            model.store.shrink(table)

    def shrink_dense_table(
        self, decay: float, emb_dim: int = 11, scope: Any = None, table_id: int | None = None
    ) -> None:
        """Multiply each sum in the data_norm layers by `decay`."""
        del emb_dim, table_id
        for name in self._sums():
            found = (scope or global_scope()).find_var(name)
            if found is not None and found.value() is not None:
                tensor = found.get_tensor()
                tensor.set(np.array(tensor) * np.float32(decay))

    def _sums(self) -> list[str]:
        program = self._minimized(self._origin_program)
        endings = (".batch_size", ".batch_square_sum", ".batch_sum")
        return [v.name for v in program.all_parameters() if v.name.endswith(endings)]


class PslibOptimizer(ProgramOptimizer):
    """The optimizer that `PslibFleet.distributed_optimizer` returns."""

    def minimize(  # type: ignore[override]
        self,
        losses: Variable | Sequence[Variable],
        scopes: Sequence[Scope] | None = None,
        startup_programs: Program | Sequence[Program] | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
    ) -> list[Any]:
        """Add a backward pass and update for each loss.

        Returns all operators and (parameter, gradient) pairs.

        scopes: one per loss. Only their number is checked, since a run uses the scope it is given.
        """
        several = [losses] if isinstance(losses, Variable) else list(losses)
        startups = startup_programs
        if startups is None or isinstance(startups, Program):
            startups = [startups or default_startup_program()] * len(several)
        for what, given in (("scopes", scopes), ("startup_programs", startups)):
            if given is not None and len(given) != len(several):
                raise ValueError(
                    f"{what} must have one entry per loss, got {len(given)} for {len(several)} "
                    "losses"
                )
        operators, pairs = [], []
        for loss, startup in zip(several, startups, strict=True):
            made, found = self._minimize(loss, startup, parameter_list, no_grad_set)
            operators += made
            pairs += found
        return [operators, pairs]


FLEET_GLOBAL_DICT: dict[str, Any] = {
    "enable": False,
    "emb_to_table": {},
    "emb_to_accessor": {},
    "emb_to_size": {},
    "cur_sparse_id": 0,
    "cur_accessor": "",
    "click_name": "",
    "scale_sparse_grad": None,
}
"""The tables declared by `fleet_embedding`, by their parameters' names."""


class fleet_embedding:  # noqa: N801  (Fluid's name)
    """Declares that the embeddings in the `with` block are pslib tables for click models.

    click_name: the variable that holds clicks. The name is only recorded, since tables do not
        count shows and clicks.
    """

    def __init__(self, click_name: str | None, scale_sparse_grad: bool = True) -> None:
        self.click_name = click_name or ""
        self.scale_sparse_grad = scale_sparse_grad
        self.accessor = "DownpourCtrAccessor"

    def __enter__(self) -> None:
        FLEET_GLOBAL_DICT["cur_accessor"] = self.accessor
        FLEET_GLOBAL_DICT["click_name"] = self.click_name
        FLEET_GLOBAL_DICT["scale_sparse_grad"] = self.scale_sparse_grad

    def __exit__(self, *_: object) -> None:
        FLEET_GLOBAL_DICT.update(cur_accessor="", click_name="", scale_sparse_grad=None)


def _prepare_params(
    input: Variable,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: Any = None,
    dtype: str = "float32",
) -> None:
    """Check that an embedding can be a table, and record it in FLEET_GLOBAL_DICT."""
    del input, padding_idx
    name = getattr(param_attr, "name", None)
    if name is None:
        raise ValueError("param_attr must be a ParamAttr whose name is the table's name")
    if not isinstance(size, (list, tuple)):
        raise ValueError(f"size must be a list or tuple, got {size!r}")
    if not is_sparse or not is_distributed or dtype != "float32":
        raise ValueError(
            f"embedding {name!r}: got is_sparse={is_sparse}, is_distributed={is_distributed}, "
            f"dtype={dtype!r}; expected True, True and 'float32'"
        )
    for key, value in (("size", size[-1]), ("accessor", FLEET_GLOBAL_DICT["cur_accessor"])):
        known = FLEET_GLOBAL_DICT[f"emb_to_{key}"].setdefault(name, value)
        if known != value:
            raise ValueError(
                f"embedding {name!r}: got {key} {value!r}, but it was declared with {known!r}"
            )
    tables = FLEET_GLOBAL_DICT["emb_to_table"]
    tables.setdefault(name, len(tables))
    FLEET_GLOBAL_DICT.update(enable=True, cur_sparse_id=len(tables))


def _fleet_embedding(input: Variable, size: Sequence[int], *args: Any, **kwargs: Any) -> Variable:
    """Check that the embedding can be a table, and add it with `layers.embedding`."""
    _prepare_params(input, size, *args, **kwargs)
    return embedding(input, size, *args, **kwargs)


def _fleet_embedding_v2(
    input: Variable, size: Sequence[int], *args: Any, **kwargs: Any
) -> Variable:
    """Check that the embedding can be a table, and add it with `fluid.embedding`."""
    _prepare_params(input, size, *args, **kwargs)
    return embedding_of_ids(input, size, *args, **kwargs)


fleet = PslibFleet()
"""This process's fleet object, under the name `pslib`."""
