"""Check 2: dense parameters and rows are equal everywhere."""

from __future__ import annotations

import numpy as np

from sparsefleet.errors import CheckpointError, ShapeError
from sparsefleet.serving.export.export_directory import verify_export
from sparsefleet.serving.export.feeds import Arrays
from sparsefleet.serving.verify.case import Case, ModelTable, dense_of
from sparsefleet.serving.verify.report import CheckResult, Figures, Finding, counted
from sparsefleet.serving.verify.row_comparison import RowTally, compare_rows
from sparsefleet.serving.verify.side import Side, TableFacts
from sparsefleet.serving.verify.sides import checksums_of

__all__ = ["ParametersCheck"]

_PARAMETERS = "parameters"
"""The part of an export that holds the dense parameters."""


class ParametersCheck:
    """Checks that files are unchanged and that parameters and rows are bitwise equal."""

    def of_export(self, case: Case) -> CheckResult:
        model = case.model
        findings = []
        try:
            verify_export(model.directory)
        except CheckpointError as error:
            findings.append(
                Finding(
                    name="file damaged",
                    what="the export",
                    found=str(error),
                    wanted="unchanged files",
                    advice="copy the export again, or export again",
                )
            )
        in_graph = dense_of(model.exported_graph)
        findings += _dense(in_graph, model.parameters, "the file", "the graph")
        text = f"{counted(len(model.manifest.files), 'file')} unchanged"
        return CheckResult.of("parameters", model.name, text, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        findings = _checksums(case, side)
        text = []
        dense = side.dense()
        if dense is not None:
            own = case.model.dense
            findings += _dense(own, dense, *_direction(side))
            text.append(counted(len(own), "dense parameter"))
        tables = side.tables()
        figures: Figures = {}
        if tables is not None:
            figures["rows"] = tallies = {}
            for name, file in case.model.tables.items():
                found, tally = _table(case, side, file, tables.get(name))
                findings += found
                if tally is not None:
                    tallies[name] = tally
            text.append(_rows_summary(tallies))
        if dense is None and side.checksums() is not None:
            text.append("checksum of dense parameters")
        if not text:
            return None
        return CheckResult.of("parameters", side.name, ", ".join(text), findings, figures)


def _checksums(case: Case, side: Side) -> list[Finding]:
    """Compare checksums of the dense parameters; used if `side` does not report their values."""
    theirs = side.checksums()
    if theirs is None or side.dense() is not None:
        return []
    own = checksums_of(case.model.manifest)[_PARAMETERS]
    if theirs.get(_PARAMETERS) == own:
        return []
    return [
        Finding(
            name="checksum differs",
            what="dense parameters",
            found=theirs.get(_PARAMETERS, "nothing"),
            wanted=own,
        )
    ]


def _dense(one: Arrays, two: Arrays, here: str, there: str) -> list[Finding]:
    """Compare tensors with equal shapes that both sides have; the pruning check covers the rest."""
    findings = []
    for name, tensor in one.items():
        other = two.get(name)
        if other is None or other.shape != tensor.shape:
            continue
        if other.dtype != tensor.dtype:
            text = f"{tensor.dtype} and {other.dtype}"
        elif other.tobytes() != tensor.tobytes():
            gap = np.abs(tensor.astype(np.float64) - other.astype(np.float64))
            largest = float(np.nan_to_num(gap, nan=np.inf).max(initial=0.0))
            text = f"{int((gap != 0).sum())} of {gap.size} values off by up to {largest:.3g}"
        else:
            continue
        findings.append(
            Finding(
                name="dense parameter differs",
                what=f"parameter '{name}'",
                found=f"{text} in {here}",
                wanted=f"the values in {there}",
            )
        )
    return findings


def _direction(side: Side) -> tuple[str, str]:
    """Return the names of the copy and of the original, depending on the side's role."""
    export = "the export"
    return (export, side.name) if side.role == "training" else (side.name, export)


def _table(
    case: Case, side: Side, file: ModelTable, facts: TableFacts | None
) -> tuple[list[Finding], RowTally | None]:
    entry = file.entry
    what = f"table '{entry.name}'"
    if facts is None:
        if side.role == "training":
            return [], None  # reported by the pruning check
        lost = Finding(
            name="table missing",
            what=what,
            found=f"none in {side.name}",
            wanted=f"{len(file.keys):,} rows",
        )
        return [lost], None
    if facts.dim != entry.dim:
        found = Finding(
            name="row width differs",
            what=what,
            found=f"{facts.dim} values per row in {side.name}",
            wanted=f"{entry.dim}",
        )
        return [found], None
    previous = None if case.previous is None else case.previous.tables.get(entry.name)
    try:
        tally = compare_rows(
            file, side, previous=previous, sample=case.config.sample, seed=case.config.seed
        )
    except ShapeError as error:
        wanted = f"rows of {entry.dim} values"
        narrow = Finding(name="row width differs", what=what, found=str(error), wanted=wanted)
        return [narrow], None
    return _of_tally(what, tally, side, len(file.keys)), tally


def _of_tally(what: str, tally: RowTally, side: Side, exported: int) -> list[Finding]:
    here, there = _direction(side)
    findings = []
    if tally.missing:
        findings.append(
            Finding(
                name="rows missing",
                what=what,
                found=f"{tally.missing:,} rows in {there} are not in {here}",
                wanted="none",
                examples=tuple(tally.examples.get("missing", ())),
            )
        )
    if tally.different:
        findings.append(_different(what, tally, there))
    if tally.extra:
        findings.append(
            Finding(
                name="extra rows",
                what=what,
                found=f"{tally.extra:,} rows in {here} are not in {there}",
                wanted=f"the {exported:,} rows of the export",
                examples=tuple(tally.examples.get("extra", ())),
            )
        )
    return findings


def _different(what: str, tally: RowTally, wanted: str) -> Finding:
    share = f"{tally.different:,} of {tally.compared:,} rows differ"
    found = f"{share}, by up to {tally.largest:.3g}"
    is_stale = tally.stale * 2 > tally.different
    if tally.stale:
        found += f"; {tally.stale:,} equal the previous export's rows"
    return Finding(
        name="rows stale" if is_stale else "rows differ",
        what=what,
        found=found,
        wanted=f"the values in {wanted}",
        examples=tuple(tally.examples.get("different", ())),
    )


def _rows_summary(tallies: dict[str, RowTally]) -> str:
    compared = sum(tally.compared for tally in tallies.values())
    text = f"{counted(compared, 'row')} of {counted(len(tallies), 'table')}"
    sampled = [tally for tally in tallies.values() if tally.sampled]
    if sampled:
        worst = max(tally.bound() for tally in sampled)
        text += f" (a sample: at 95% confidence, at most {worst:.2g} of a table's rows are wrong)"
    return text
