"""Checks predictions, labels and groups, and turns them into arrays.

In shapes, B is the number of examples and C the number of classes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, ShapeError


class Batch:
    """One batch, checked once and then read by any number of metrics.

    Arrays may share memory with the arguments, so read them before the caller modifies the
    arguments.
    """

    def __init__(self, predictions: Any, labels: Any, groups: Any = None) -> None:
        self._raw = _as_floats(predictions)
        self.size = len(self._raw)
        self._labels = self._column("labels", labels)
        self._groups = None if groups is None else self._column("groups", groups)

    @cached_property
    def predictions(self) -> NDArray[Any]:
        """Probabilities, float32 or float64, [B] or [B, C] with C >= 2, in 0..1."""
        array = self._raw
        # A NaN makes both ends NaN, so one comparison finds it too.
        if array.size > 0 and not (array.min() >= 0 and array.max() <= 1):
            _refuse("predictions", array, ~((array >= 0) & (array <= 1)), "probabilities in 0..1")
        return array

    @cached_property
    def values(self) -> NDArray[Any]:
        """Return the predictions, which may be any finite numbers, float32 or float64 [B]."""
        if self._raw.ndim != 1:
            raise ShapeError(
                f"predictions must have shape [B] or [B, 1], got {list(self._raw.shape)}"
            )
        return _finite("predictions", self._raw)

    @cached_property
    def targets(self) -> NDArray[Any]:
        """Return the labels, which may be any finite numbers, [B]."""
        return _finite("labels", self._labels)

    @cached_property
    def scores(self) -> NDArray[Any]:
        """Return the probability of class 1, float32 or float64 [B]."""
        if self.predictions.ndim == 1:
            return self.predictions
        if self.predictions.shape[1] != 2:
            raise ShapeError(
                "predictions must have shape [B], [B, 1] or [B, 2] for a binary metric, "
                f"got {list(self.predictions.shape)}"
            )
        return self.predictions[:, 1]

    @cached_property
    def positive(self) -> NDArray[np.bool_]:
        """Return whether each label is 1, bool[B]."""
        labels = self._labels
        ones: NDArray[np.bool_] = labels == 1
        if np.count_nonzero(ones) + np.count_nonzero(labels == 0) != self.size:
            _refuse("labels", labels, (labels != 0) & (labels != 1), "0 or 1")
        return ones

    def classes(self, num_classes: int) -> NDArray[Any]:
        """Return the labels as class indices 0..num_classes-1, int or float [B]."""
        labels = self._labels
        legal = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
        if not legal.all():
            _refuse("labels", labels, ~legal, f"whole numbers in 0..{num_classes - 1}")
        return labels

    @cached_property
    def groups(self) -> NDArray[np.int64]:
        """Return the group of each example, int64[B]; uint64 is reinterpreted, like table keys."""
        if self._groups is None:
            raise ConfigError(
                "groups are missing: a grouped metric needs update(predictions, labels, groups=...)"
            )
        if self._groups.dtype.kind not in "iu":
            raise ConfigError(f"groups must be integers, got {self._groups.dtype}")
        if self._groups.dtype == np.uint64:
            return np.ascontiguousarray(self._groups).view(np.int64)
        return self._groups.astype(np.int64, copy=False)

    def _column(self, what: str, values: Any) -> NDArray[Any]:
        array = _as_array(what, values)
        if array.ndim == 2 and array.shape[1] == 1:
            array = array[:, 0]
        if array.ndim != 1:
            raise ShapeError(f"{what} must have shape [B] or [B, 1], got {list(array.shape)}")
        if len(array) != self.size:
            raise ShapeError(
                f"got {len(array)} {what} for {self.size} predictions, expected one per prediction"
            )
        if array.dtype == np.bool_:
            return array.view(np.uint8)
        if array.dtype.kind not in "iuf":
            raise ConfigError(f"{what} must be numbers, got {array.dtype}")
        return array


def _as_array(what: str, values: Any) -> NDArray[Any]:
    """Return the values as a NumPy array; arrays and CPU tensors are not copied."""
    if isinstance(values, np.ndarray):
        return values
    if hasattr(values, "detach"):  # a torch tensor; avoids importing torch here
        if values.device.type != "cpu":
            raise ConfigError(f"{what} are on device '{values.device}': move them with .cpu()")
        tensor = values.detach()
        if str(tensor.dtype) == "torch.bfloat16":  # NumPy has no such type
            tensor = tensor.float()
        return np.asarray(tensor.numpy())
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ShapeError(f"{what} do not form an array: {error}") from None


def _finite(what: str, values: NDArray[Any]) -> NDArray[Any]:
    finite = np.isfinite(values)
    if not finite.all():
        _refuse(what, values, ~finite, "finite numbers")
    return values


def _as_floats(values: Any) -> NDArray[Any]:
    array = _as_array("predictions", values)
    if array.ndim not in (1, 2) or (array.ndim == 2 and array.shape[1] == 0):
        raise ShapeError(
            f"predictions must have shape [B], [B, 1] or [B, C], got {list(array.shape)}"
        )
    if array.dtype.kind != "f":
        if array.size > 0:
            raise ConfigError(f"predictions must be float32 or float64, got {array.dtype}")
        array = array.astype(np.float32)
    if array.dtype.itemsize not in (4, 8) or not array.dtype.isnative:
        array = array.astype(np.float32 if array.dtype.itemsize <= 4 else np.float64)
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _refuse(what: str, values: NDArray[Any], bad: NDArray[np.bool_], wanted: str) -> None:
    first = tuple(np.argwhere(bad)[0].tolist())
    hint = "; apply a sigmoid or softmax to logits first" if what == "predictions" else ""
    found = values[first]
    raise ConfigError(
        f"{what} must be {wanted}, got {found} at index {', '.join(map(str, first))} "
        f"({np.count_nonzero(bad)} of {bad.size} are wrong){'' if found != found else hint}"
    )
