"""What a Dataset's variables are in the files it reads."""

from __future__ import annotations

from typing import Any

from sparsefleet.data import Slot
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.dtypes import dtype_name

__all__ = ["slot_of"]

_SLOT_DTYPES = {"float32": "float", "int64": "uint64"}


def slot_of(variable: Any) -> Slot:
    """The slot of a Variable, or of anything with name, shape, dtype and lod_level; a Slot itself.

    lod_level 0 is a dense slot with the variable's shape behind the batch; others are sparse.

    >>> from sparsefleet import fluid
    >>> slot_of(fluid.data("dense", [None, 13], "float32"))
    Slot(name='dense', dtype='float', shape=(13,))
    >>> slot_of(fluid.data("ads", [None, 1], "int64", lod_level=1))
    Slot(name='ads', dtype='uint64', shape=None)
    """
    if isinstance(variable, Slot):
        return variable
    try:
        name, shape, lod_level = variable.name, tuple(variable.shape), variable.lod_level
        dtype = _SLOT_DTYPES.get(dtype_name(variable.dtype))
    except (AttributeError, TypeError) as error:
        raise ConfigError(f"set_use_var takes variables, got {variable!r}: {error}") from error
    if dtype is None:
        raise ConfigError(
            f"variable '{name}': files hold float32 and int64, got {variable.dtype!r}: declare it "
            "as one of these, and cast it in the network"
        )
    if lod_level > 0:
        return Slot(name, dtype)  # type: ignore[arg-type]
    if not shape or shape[0] not in (-1, None) or any(size in (-1, None) for size in shape[1:]):
        raise ConfigError(
            f"variable '{name}': a dense slot has a shape that begins with -1, for the batch, and "
            f"is known behind it; got {list(shape)}. If the number of values varies: lod_level=1"
        )
    return Slot(name, dtype, shape[1:])  # type: ignore[arg-type]
