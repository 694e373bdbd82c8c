"""Check 3: the same example gives the same ids and floats on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from sparsefleet.errors import FeedError
from sparsefleet.export.schema import InputSchema, Schema
from sparsefleet.serve.example_files import read_table
from sparsefleet.verify.case import Case
from sparsefleet.verify.examples import Examples
from sparsefleet.verify.finding import CheckResult, Finding, counted
from sparsefleet.verify.input_comparison import compare_inputs
from sparsefleet.verify.side import Side

__all__ = ["InputsCheck"]

_TRACED = 8
"""Examples of which a service is asked to show its inputs: it shows no more."""


class InputsCheck:
    """Schema, types, order of slots, hashing, scaling, missing values."""

    def of_export(self, case: Case) -> CheckResult | None:
        """The examples of the file against those that online has prepared."""
        path = case.config.online_examples
        if path is None:
            return None
        findings = _prepared(case, Path(path))
        said = f"{case.examples.count:,} examples of {case.examples.source} and {path}"
        return CheckResult.of("inputs", str(path), said, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        schema = side.schema()
        if schema is None:
            return None
        findings = list(_schema(case.model.schema, schema))
        said = counted(len(schema.inputs), "input")
        if not findings:
            count = min(_TRACED, case.examples.count)
            sent = case.examples.part(0, count)
            trace = side.trace(sent)
            if trace is not None:
                findings += compare_inputs(sent, trace.inputs)
                said += f", {counted(count, 'example')} as the model was fed"
            findings += _without_values(case, side)
        return CheckResult.of("inputs", side.name, said, findings)


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
    """Offline, an example without a value is refused; so it must be online."""
    if case.examples.count == 0:
        return
    whole = case.examples.row(0)
    for item in case.model.schema.inputs:
        without = {name: value for name, value in whole.items() if name != item.name}
        for example, said in ((without, "without it"), ({**whole, item.name: None}, "null")):
            if side.takes(example):
                yield Finding(
                    name="missing values",
                    what=f"input '{item.name}'",
                    found=f"a prediction for an example {said}",
                    wanted="a refusal, as offline",
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
        wanted = "values as the model takes them"
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
        if not _holds(kind, item):
            yield Finding(
                name="wrong dtype",
                what=f"input '{item.name}'",
                found=f"{kind}",
                wanted=f"{item.dtype}",
                advice="ids above 2^53 cannot be held by floats",
            )


def _holds(kind: pa.DataType, item: InputSchema) -> bool:
    """Whether a column of this type holds what the input takes, and nothing was lost."""
    if pa.types.is_string(kind) or pa.types.is_null(kind):
        return item.is_ragged or len(item.shape) > 1  # lists in CSV; an empty list has no type
    if item.dtype.startswith(("int", "uint")):
        return bool(pa.types.is_integer(kind))
    if item.dtype.startswith("float"):
        return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
    return True
