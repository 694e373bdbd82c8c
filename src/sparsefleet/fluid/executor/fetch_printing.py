"""Print fetched values during a pass over a Dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["FetchPrinter", "print_as_fluid", "print_fetched"]

Form = Callable[[str, str, Any, Sequence[Any]], str]

_C_NAMES = {"float32": "float", "float64": "double", "int32": "int", "int64": "int64_t"}


class FetchPrinter:
    """Decides when the first thread prints fetched values, by counting its batches across passes.

    >>> printer = FetchPrinter()
    >>> [printer.is_due(2) for _ in range(5)]
    [False, True, False, True, False]
    """

    def __init__(self) -> None:
        self._batches = 0

    def is_due(self, period: int) -> bool:
        """Count a batch of the first thread; return whether to print now."""
        self._batches += 1
        return self._batches % period == 0


def print_as_fluid() -> None:
    """From now on, print fetched values on several lines, in the format of Fluid 1.8.5."""
    _form.text = _in_lines


def print_fetched(info: str, name: str, value: Any, lod: Sequence[Any]) -> None:
    """Print a tensor as `info<TAB>name<TAB>values`, or in Fluid's format."""
    print(_form.text(info, name, value, lod), flush=True)


def _numbers(value: Any) -> str:
    return " ".join(f"{number:.6g}" for number in value.detach().reshape(-1).tolist())


def _in_one_line(info: str, name: str, value: Any, lod: Sequence[Any]) -> str:
    del lod
    return f"{info}\t{name}\t{_numbers(value)}"


def _in_lines(info: str, name: str, value: Any, lod: Sequence[Any]) -> str:
    kind = str(value.dtype).removeprefix("torch.")
    levels = "".join("{" + ", ".join(map(str, level.tolist())) + "}" for level in lod)
    lines = [
        f"{info}\t{name}\t\tlod: {{{levels}}}",
        f"dim: {', '.join(map(str, value.shape))}",
        "layout: NCHW",
        f"dtype: {_C_NAMES.get(kind, kind)}",
        f"data: [{_numbers(value)}]",
        "",
    ]
    return "\n\t".join(lines)


class _Form:
    def __init__(self) -> None:
        self.text: Form = _in_one_line


_form = _Form()
