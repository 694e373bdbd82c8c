"""Check 3: the same example produces the same ids and floats on both sides.

In shapes, B is the number of examples, F the number of slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparsefleet.errors import FeedError
from sparsefleet.serving.example_files import read_table
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.export.manifest import InputSchema, Schema
from sparsefleet.serving.verify.case import Case, Examples
from sparsefleet.serving.verify.report import CheckResult, Finding, counted
from sparsefleet.serving.verify.side import Side

__all__ = ["InputsCheck", "compare_inputs"]


Column = NDArray[Any]
_EXAMPLES = 5
_ROUNDED = 2e-3
"""The relative error that half precision can cause: 2^-11 plus some margin."""


def compare_inputs(offline: Arrays, online: Arrays) -> list[Finding]:
    """Return the differences, one finding per input or slot, each named after its likely cause.

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
    findings += [
        _finding("input unknown", name, "an input", "no input with that name") for name in more
    ]
    return findings


def _slots(arrays: Arrays) -> dict[str, Column]:
    """Return the columns by name; `ids[2]` is slot 2 of the input 'ids'."""
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
        found = f"the values of offline '{twin}'"
        return _finding("slots swapped", name, found, f"'{name}'", *examples)
    guesses = (
        _missing_values(own, other, wrong),
        _ids(own, other, wrong) if own.dtype.kind in "iu" else _numbers(own, other),
    )
    for guess in guesses:
        if guess is not None:
            return _finding(guess[0], name, guess[1], "the offline values", *examples)
    if own.size > 1 and np.array_equal(np.sort(own), np.sort(other)):
        found = "the same values in a different order"
        return _finding("examples reordered", name, found, "the offline order", *examples)
    found = f"{int(wrong.sum()):,} of {own.size:,} values differ"
    return _finding("values differ", name, found, "the offline values", *examples)


def _twin(name: str, other: Column, slots: dict[str, Column]) -> str | None:
    """Return the offline slot whose values appear in this online slot."""
    for candidate, column in slots.items():
        if candidate == name or column.shape != other.shape or column.dtype != other.dtype:
            continue
        if _same(column, other).all() and np.unique(column).size > 1:
            return candidate
    return None


def _missing_values(own: Column, other: Column, wrong: NDArray[np.bool_]) -> tuple[str, str] | None:
    """Explain differences that occur exactly where one side has a placeholder for a missing
    value.
    """
    if wrong.all() or wrong.sum() < 1:
        return None
    for side, column in (("offline", own), ("online", other)):
        values = np.unique(column[wrong])
        if len(values) != 1 or not (_is_nan(values[0]) or values[0] in (0, -1)):
            continue  # it does not stand for a missing value
        is_it = np.isnan(column) if _is_nan(values[0]) else column == values[0]
        if np.array_equal(is_it, wrong):
            one, two = _one(own[wrong]), _one(other[wrong])
            return "missing values", f"{two} where offline has {one} (no value {side})"
    return None


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _one(values: Column) -> str:
    distinct = np.unique(values)
    return str(distinct[0]) if len(distinct) == 1 else "other values"


def _ids(own: Column, other: Column, wrong: NDArray[np.bool_]) -> tuple[str, str] | None:
    keys, others = (column.astype(np.int64).view(np.uint64) for column in (own, other))
    shift = np.unique(others - keys)  # modulo 2^64, like ids
    if len(shift) == 1:
        return "ids shifted", f"every id shifted by {int(shift.view(np.int64)[0]):+d}"
    if wrong.mean() < 0.5:
        return None
    pairs = np.unique(np.stack([own, other]), axis=1)
    if len(np.unique(own)) < pairs.shape[1]:
        return None  # one id became several ids, so the difference is not a function of the id
    targets = len(np.unique(other))
    text = f"{pairs.shape[1]:,} ids mapped to {targets:,} others"
    return "ids hashed differently", f"{text}, consistently for each id"


def _numbers(own: Column, other: Column) -> tuple[str, str] | None:
    one, two = own.astype(np.float64), other.astype(np.float64)
    if not (np.isfinite(one).all() and np.isfinite(two).all()):
        return None
    if np.allclose(one, two, rtol=_ROUNDED, atol=1e-7):
        largest = float(np.abs(one - two).max())
        return "values rounded", f"lower precision, off by up to {largest:.3g}"
    if np.unique(one).size > 2:
        factor, shift = np.polyfit(one, two, 1)
        if np.allclose(factor * one + shift, two, rtol=1e-4, atol=1e-4 * np.abs(two).max()):
            return "values scaled", f"{factor:.6g} * x {shift:+.6g}"
    for name, function in (("log(1 + x)", np.log1p), ("exp(x) - 1", np.expm1)):
        with np.errstate(all="ignore"):
            if np.allclose(function(one), two, rtol=1e-4, atol=1e-6):
                return "values scaled", f"{name}"
    return None


_TRACED = 8
"""The maximum number of examples whose inputs a service is asked to report."""


class InputsCheck:
    """Compares schema, types, slot order, hashing, scaling and missing values."""

    def of_export(self, case: Case) -> CheckResult | None:
        """Compare the examples in the file with the examples prepared online."""
        path = case.config.online_examples
        if path is None:
            return None
        findings = _prepared(case, Path(path))
        text = f"{case.examples.count:,} examples from {case.examples.source} and {path}"
        return CheckResult.of("inputs", str(path), text, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        schema = side.schema()
        if schema is None:
            return None
        findings = list(_schema(case.model.schema, schema))
        text = counted(len(schema.inputs), "input")
        if not findings:
            count = min(_TRACED, case.examples.count)
            sent = case.examples.part(0, count)
            trace = side.trace(sent)
            if trace is not None:
                findings += compare_inputs(sent, trace.inputs)
                text += f", {counted(count, 'example')} as received by the model"
            findings += _without_values(case, side)
        return CheckResult.of("inputs", side.name, text, findings)


def _schema(own: Schema, other: Schema) -> Iterator[Finding]:
    names, theirs = [x.name for x in own.inputs], [x.name for x in other.inputs]
    if sorted(names) == sorted(theirs) and names != theirs:
        yield Finding(
            name="slots swapped",
            what="order of inputs",
            found=", ".join(theirs),
            wanted=", ".join(names),
        )
        return
    for kind, mine, found in (
        ("input", {x.name: str(x) for x in own.inputs}, {x.name: str(x) for x in other.inputs}),
        ("target", {x.name: str(x) for x in own.targets}, {x.name: str(x) for x in other.targets}),
    ):
        for name in sorted(mine.keys() | found.keys()):
            if mine.get(name) != found.get(name):
                yield Finding(
                    name="schema differs",
                    what=f"{kind} '{name}'",
                    found=found.get(name, "nothing"),
                    wanted=mine.get(name, "nothing"),
                )
    if own.lookups != other.lookups:
        yield Finding(
            name="schema differs",
            what="lookups",
            found="; ".join(map(str, other.lookups)),
            wanted="; ".join(map(str, own.lookups)),
        )


def _without_values(case: Case, side: Side) -> Iterator[Finding]:
    """Check that the side rejects missing values, unless training replaced them."""
    if case.examples.count == 0:
        return
    whole = case.examples.row(0)
    schema = case.model.schema
    for item in schema.inputs:
        without = {name: value for name, value in whole.items() if name != item.name}
        null = {**whole, item.name: None}
        for example, text, is_fine in (
            (without, "without it", False),
            (null, "null", schema.takes_null(item.name)),
        ):
            if side.takes(example) not in (None, is_fine):
                answers = ("an error", "a prediction")
                yield Finding(
                    name="missing values",
                    what=f"input '{item.name}'",
                    found=f"{answers[not is_fine]} for an example {text}",
                    wanted=f"{answers[is_fine]}, as offline",
                )


def _prepared(case: Case, path: Path) -> list[Finding]:
    schema = case.model.schema
    table = read_table(path, schema)
    findings = list(_columns(schema, table))
    if findings:
        return findings
    try:
        online = Examples.of_file(path, schema, limit=case.config.max_examples)
    except FeedError as error:
        kind = "missing values" if "no value" in str(error) else "schema differs"
        found = str(error)
        wanted = "values that the model accepts"
        return [Finding(name=kind, what=str(path), found=found, wanted=wanted)]
    return compare_inputs(case.examples.arrays, online.arrays)


def _columns(schema: Schema, table: pa.Table) -> Iterator[Finding]:
    for item in schema.inputs:
        if item.name not in table.column_names:
            yield Finding(
                name="input missing",
                what=f"input '{item.name}'",
                found=f"columns {', '.join(table.column_names)}",
                wanted=f"{item}",
            )
            continue
        kind = table.schema.field(item.name).type
        while pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
            kind = kind.value_type
        is_hashed = schema.hashing(item.name) is not None
        if not _holds(kind, item) and not (is_hashed and pa.types.is_string(kind)):
            yield Finding(
                name="wrong dtype",
                what=f"input '{item.name}'",
                found=f"{kind}",
                wanted=f"{item.dtype}",
                advice="floats cannot represent all ids above 2^53",
            )


def _holds(kind: pa.DataType, item: InputSchema) -> bool:
    """Return whether a column of this type can hold the input without loss."""
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return item.is_ragged or len(item.shape) > 1  # lists in CSV; an empty list has no type
    if item.dtype.startswith(("int", "uint")):
        return bool(pa.types.is_integer(kind))
    if item.dtype.startswith("float"):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    return True
