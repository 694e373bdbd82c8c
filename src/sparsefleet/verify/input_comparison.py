"""Two forms of the same examples, and how the one came about from the other.

Letters: B examples, F slots.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.export.feeds import Arrays
from sparsefleet.verify.finding import Finding

__all__ = ["compare_inputs"]

Column = NDArray[Any]
_EXAMPLES = 5
_ROUNDED = 2e-3
"""Relative: what is lost by half precision, 2^-11, and a little more."""


def compare_inputs(offline: Arrays, online: Arrays) -> list[Finding]:
    """What differs, named by what most likely happened; one finding an input or slot.

    >>> one = {"ids": np.array([[1, 7], [2, 8], [3, 9]])}
    >>> other = {"ids": np.array([[7, 1], [8, 2], [9, 3]])}
    >>> [finding.name for finding in compare_inputs(one, other)]
    ['slots swapped', 'slots swapped']
    """
    findings = []
    slots, theirs = _slots(offline), _slots(online)
    for name, own in slots.items():
        other = theirs.get(name)
        if other is None:
            findings.append(_finding("input missing", name, "nothing", f"{own.dtype}{own.shape}"))
        elif own.dtype.kind != other.dtype.kind:
            findings.append(_finding("wrong dtype", name, str(other.dtype), str(own.dtype)))
        elif own.shape != other.shape:
            found, wanted = f"{other.size} values", f"{own.size} values"
            findings.append(_finding("examples differ", name, found, wanted))
        elif not _same(own, other).all():
            findings.append(_explained(name, slots, theirs))
    more = [name for name in theirs if name not in slots]
    findings += [_finding("input unknown", name, "an input", "none of that name") for name in more]
    return findings


def _slots(arrays: Arrays) -> dict[str, Column]:
    """Columns one by one: `ids[2]` is slot 2 of the input 'ids'."""
    slots: dict[str, Column] = {}
    for name, array in arrays.items():
        if array.ndim == 2 and array.shape[1] > 1:
            slots |= {f"{name}[{at}]": array[:, at] for at in range(array.shape[1])}
        else:
            slots[name] = array.reshape(-1)
    return slots


def _same(own: Column, other: Column) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = own == other
    if own.dtype.kind == "f":
        same = same | (np.isnan(own) & np.isnan(other))
    return same


def _finding(name: str, slot: str, found: str, wanted: str, *examples: str) -> Finding:
    what = f"input '{slot}'"
    return Finding(name=name, what=what, found=found, wanted=wanted, examples=examples)


def _explained(name: str, slots: dict[str, Column], theirs: dict[str, Column]) -> Finding:
    own, other = slots[name], theirs[name]
    wrong = ~_same(own, other)
    examples = [
        f"example {at}: offline {own[at]}, online {other[at]}"
        for at in np.flatnonzero(wrong)[:_EXAMPLES]
    ]
    twin = _twin(name, other, slots)
    if twin is not None:
        found = f"what offline is '{twin}'"
        return _finding("slots swapped", name, found, f"'{name}'", *examples)
    guesses = (
        _missing_values(own, other, wrong),
        _ids(own, other, wrong) if own.dtype.kind in "iu" else _numbers(own, other),
    )
    for guess in guesses:
        if guess is not None:
            return _finding(guess[0], name, guess[1], "the values of offline", *examples)
    if own.size > 1 and np.array_equal(np.sort(own), np.sort(other)):
        found = "the same values in another order"
        return _finding("examples in another order", name, found, "the order of offline", *examples)
    found = f"{int(wrong.sum()):,} of {own.size:,} values that differ"
    return _finding("values differ", name, found, "the values of offline", *examples)


def _twin(name: str, other: Column, slots: dict[str, Column]) -> str | None:
    """The slot of offline that online has in this place."""
    for candidate, column in slots.items():
        if candidate == name or column.shape != other.shape or column.dtype != other.dtype:
            continue
        if _same(column, other).all() and np.unique(column).size > 1:
            return candidate
    return None


def _missing_values(own: Column, other: Column, wrong: NDArray[np.bool_]) -> tuple[str, str] | None:
    """They differ only where one side has what stands for no value, and always there."""
    if wrong.all() or wrong.sum() < 1:
        return None
    for side, column in (("offline", own), ("online", other)):
        values = np.unique(column[wrong])
        stands = _stands_for_nothing(values)
        if not stands:
            continue
        is_it = np.isnan(column) if _is_nan(values[0]) else column == values[0]
        if np.array_equal(is_it, wrong):
            one, two = _one(own[wrong]), _one(other[wrong])
            return "missing values", f"{two} where offline has {one} ({side} has no value there)"
    return None


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _stands_for_nothing(values: Column) -> bool:
    return len(values) == 1 and (_is_nan(values[0]) or values[0] in (0, -1))


def _one(values: Column) -> str:
    distinct = np.unique(values)
    return str(distinct[0]) if len(distinct) == 1 else "other values"


def _ids(own: Column, other: Column, wrong: NDArray[np.bool_]) -> tuple[str, str] | None:
    keys, others = (column.astype(np.int64).view(np.uint64) for column in (own, other))
    shift = np.unique(others - keys)  # modulo 2^64, as ids are
    if len(shift) == 1:
        return "ids shifted", f"every id {int(shift.view(np.int64)[0]):+d}"
    if wrong.mean() < 0.5:
        return None
    pairs = np.unique(np.stack([own, other]), axis=1)
    if len(np.unique(own)) < pairs.shape[1]:
        return None  # one id became several: no function of the id
    targets = len(np.unique(other))
    said = f"{pairs.shape[1]:,} ids that became {targets:,} others"
    return "ids hashed otherwise", f"{said}, always the same for the same id"


def _numbers(own: Column, other: Column) -> tuple[str, str] | None:
    one, two = own.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return None
    if np.allclose(one, two, rtol=_ROUNDED, atol=1e-7):
        largest = float(np.abs(one - two).max())
        return "values rounded", f"numbers of fewer digits, off by up to {largest:.3g}"
    if np.unique(one).size > 2:
        factor, shift = np.polyfit(one, two, 1)
        if np.allclose(factor * one + shift, two, rtol=1e-4, atol=1e-4 * np.abs(two).max()):
            return "values scaled", f"{factor:.6g} times the number {shift:+.6g}"
    for name, function in (("log(1 + x)", np.log1p), ("exp(x) - 1", np.expm1)):
        with np.errstate(all="ignore"):
            if np.allclose(function(one), two, rtol=1e-4, atol=1e-6):
                return "values scaled", f"{name} of the number"
    return None
