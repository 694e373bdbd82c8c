"""Fluid 1.0's way to many places, which some programs still name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sparsefleet.fluid.framework import Variable

__all__ = ["ParallelDo"]


class ParallelDo:
    """A network that is run on the whole batch, by one place.

    Batches are divided among places by `CompiledProgram.with_data_parallel`.
    """

    def __init__(self, places: Any, use_nccl: bool = False, name: str | None = None) -> None:
        del places, use_nccl, name
        self._outputs: list[Variable] = []

    @contextmanager
    def do(self) -> Iterator[None]:
        """Layers within are the network."""
        yield

    def read_input(self, var: Variable) -> Variable:
        """The part of a variable for one place: all of it."""
        return var

    def write_output(self, var: Variable) -> None:
        """A result of the network."""
        self._outputs.append(var)

    def __call__(self) -> Variable | Sequence[Variable]:
        """The results: one variable, or a list."""
        if not self._outputs:
            raise ValueError("layers.ParallelDo: call write_output(...) within do()")
        return self._outputs[0] if len(self._outputs) == 1 else self._outputs
