"""Convert feeds, the inputs of a run, to tensors and their LoD."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.call_site import site_prefix
from sparsefleet.fluid.framework.lod_tensor import LoDTensor
from sparsefleet.fluid.framework.variable import Variable, check_feed
from sparsefleet.fluid.lowering.lowered import Lod

__all__ = ["Fed", "feed_of"]

Fed = tuple[dict[str, torch.Tensor], dict[str, Lod]]
"""Values by name, and the LoDs of values that hold sequences."""


def feed_of(
    program: Program,
    feed: Mapping[str, Any] | list[Mapping[str, Any]] | None,
    num_places: int = 1,
) -> Fed:
    """Check a feed and convert it to tensors.

    Its values may be arrays, LoDTensors, tensors, numbers, or a Dataset's (values, offsets).
    """
    if isinstance(feed, (list, tuple)) and len(feed) == 1:
        feed = feed[0]
    if feed is None:
        feed = {}
    if not isinstance(feed, Mapping):
        raise TypeError(f"feed must be a dict of name -> array, got {type(feed).__name__}")
    variables = program.global_block().vars
    values: dict[str, torch.Tensor] = {}
    lods: dict[str, Lod] = {}
    for name, given in feed.items():
        variable = variables.get(name)
        if variable is None:
            warnings.warn(
                f"'{name}' is fed, but the program has no variable with that name", stacklevel=4
            )
            continue
        values[name], lod = _tensor_of(variable, given, num_places)
        if lod:
            lods[name] = lod
    return values, lods


def _tensor_of(variable: Variable, given: Any, num_places: int) -> tuple[torch.Tensor, Lod]:
    lod: Lod = ()
    if isinstance(given, LoDTensor):
        lod = tuple(torch.from_numpy(level) for level in given.offsets())
        tensor = given.tensor
    elif isinstance(given, tuple) and len(given) == 2:
        tensor, lod = torch.from_numpy(given[0]), (torch.from_numpy(given[1]),)
    elif isinstance(given, torch.Tensor):
        tensor = given.detach()
    elif isinstance(given, list):
        raise RuntimeError(
            f"{site_prefix()}fed to '{variable.name}': got a list; convert it to an array or, "
            "for sequences of different lengths, to a LoDTensor with "
            "fluid.create_lod_tensor or fluid.DataFeeder"
        )
    else:
        array = np.asarray(given)
        if array.dtype.kind in "OSU":
            raise TypeError(
                f"{site_prefix()}fed to '{variable.name}': got {type(given).__name__} of "
                f"{array.dtype}, expected {variable.dtype} numbers"
            )
        if array.ndim == 0:
            array = array.reshape(1).astype(variable.dtype)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    shape = tuple(tensor.shape)
    if lod and variable.shape[:1] not in ((-1,), shape[:1]):  # may be the number of sequences
        shape = (len(lod[0]) - 1, *shape[1:])
    check_feed(variable, shape, tensor.dtype, num_places)
    return tensor, lod
