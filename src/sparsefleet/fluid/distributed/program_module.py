"""The parameters of a program as a torch module, for a `DistributedModel` to take charge of."""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import Operator, Parameter, Program
from sparsefleet.fluid.scope import Scope
from sparsefleet.fluid.sparse_parameter import initializer_of
from sparsefleet.nn import SparseEmbedding

__all__ = ["ProgramModule"]


class ProgramModule(nn.Module):
    """Tables as SparseEmbedding, dense parameters, and frozen ones, by their names.

    first_values: a scope in which the start-up program was run.
    table_optimizers: of those parameters in tables that are updated.
    updated: names of the dense parameters that are.
    """

    def __init__(
        self,
        program: Program,
        startup: Program,
        first_values: Scope,
        *,
        table_optimizers: Mapping[str, optim.Optimizer],
        updated: frozenset[str],
    ) -> None:
        super().__init__()
        self.tables = nn.ModuleList()
        self.dense = nn.ParameterDict()
        self.parameter_of: dict[str, nn.Parameter] = {}
        """Dense parameters by their name in the program."""
        self.whole_values: dict[str, torch.Tensor] = {}
        """Tables that begin with given rows, [ids, D]."""
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of tables."""
        for parameter in program.all_parameters():
            name = parameter.name
            if parameter.is_table:
                optimizer = table_optimizers.get(name, optim.SGD(lr=0.0))
                self._add_table(parameter, _filler(startup, name), startup.random_seed, optimizer)
            else:
                value = _first_value(first_values, parameter)
                made = nn.Parameter(value, requires_grad=name in updated)
                # Names with dots are no names of attributes.
                self.dense[name.replace(".", "/")] = self.parameter_of[name] = made

    def _add_table(
        self, parameter: Parameter, op: Operator, seed: int, optimizer: optim.Optimizer
    ) -> None:
        name = parameter.name
        initializer = initializer_of(op.type, op.attrs)
        if initializer is None:
            if op.type != "assign_value":
                raise ConfigError(
                    f"the start-up program fills table '{name}' by '{op.type}', which servers "
                    "cannot do: use fluid.initializer.Uniform, Normal, Constant or NumpyArray"
                )
            values = torch.tensor(op.attrs["values"], dtype=torch.float32)
            self.whole_values[name] = values.reshape(parameter.shape)
        self.shapes[name] = parameter.shape
        # The same in all processes, so it cannot be drawn where the program has no seed.
        seed = int(op.attrs.get("seed") or seed) + crc32(name.encode())
        self.tables.append(
            SparseEmbedding(
                name,
                parameter.shape[1],
                initializer=initializer,
                optimizer=optimizer,
                seed=seed % 2**63,
                unknown="initial",
            )
        )


def _filler(startup: Program, name: str) -> Operator:
    for op in startup.global_block().ops:
        if name in op.output_arg_names:
            return op
    raise ConfigError(f"the start-up program gives parameter '{name}' no first value")


def _first_value(scope: Scope, parameter: Parameter) -> torch.Tensor:
    found = scope.find_var(parameter.name)
    value = None if found is None else found.value()
    if not isinstance(value, torch.Tensor):
        raise ConfigError(f"the start-up program gives parameter '{parameter.name}' no first value")
    return value.detach().clone()
