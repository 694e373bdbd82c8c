"""Print checkpoints, problems and differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.diff import CheckpointDiff
from sparsefleet.checkpoint.manifest import FileEntry, TableEntry
from sparsefleet.checkpoint.series import ListedCheckpoint
from sparsefleet.errors import CheckpointError

__all__ = [
    "listed_json",
    "print_diff",
    "print_json",
    "print_listed",
    "print_manifest",
    "print_problems",
    "problem_json",
]

_PIPE_WIDTH = 10_000  # wide enough that nothing is truncated in a pipe


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2))


def listed_json(listed: ListedCheckpoint) -> dict[str, Any]:
    value: dict[str, Any] = {"path": listed.path, "step": listed.step}
    if listed.manifest is None:
        return {**value, "problem": str(listed.problem)}
    return {
        **value,
        "kind": listed.manifest.kind,
        "created": listed.manifest.created,
        "base": listed.manifest.base.path if listed.manifest.base else None,
        "rows": sum(table.num_rows for table in listed.manifest.tables),
        "bytes": listed.manifest.num_bytes,
        "problem": None,
    }


def problem_json(problem: CheckpointError) -> dict[str, str]:
    return {"kind": type(problem).__name__, "message": str(problem)}


def _print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table. Columns whose name starts with `#` hold numbers."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(
            column.lstrip("#"),
            justify="right" if column.startswith("#") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*map(Text, row))
    Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(table)


def print_listed(found: Sequence[ListedCheckpoint]) -> None:
    rows = []
    for listed in found:
        value = listed_json(listed)
        if listed.manifest is None:
            rows.append([value["path"], str(listed.step), "", "", "", "", value["problem"]])
            continue
        kind = f"delta on {value['base']}" if value["base"] else value["kind"]
        numbers = [f"{value['rows']:,}", f"{value['bytes']:,}"]
        rows.append([value["path"], str(listed.step), value["created"], kind, *numbers, ""])
    _print_table(
        "checkpoints", ["path", "#step", "created", "kind", "#rows", "#bytes", "problem"], rows
    )


def print_manifest(checkpoint: Checkpoint, *, with_files: bool) -> None:
    manifest = checkpoint.manifest
    print(f"{checkpoint.path}: {manifest.kind} checkpoint at step {manifest.step}")
    print(f"created {manifest.created} by {manifest.written_by or 'an unknown program'}")
    print(f"{manifest.num_bytes:,} bytes, token {manifest.token}")
    if manifest.base is not None:
        print(f"builds on {manifest.base.path} (token {manifest.base.token})")
    _print_table(
        "tables",
        [
            "name",
            "#rows",
            "#removed",
            "#width",
            "optimizer",
            "state",
            "counters",
            "#shards",
            "#bytes",
        ],
        [_table_row(table) for table in manifest.tables],
    )
    _print_table(
        "dense tensors",
        ["name", "type", "shape"],
        [[entry.name, entry.dtype, str(list(entry.shape))] for entry in manifest.dense],
    )
    if with_files:
        files = [_file_row(entry) for entry in manifest.files()]
        _print_table("files", ["path", "#bytes", "#rows", "checksum"], files)


def _file_row(entry: FileEntry) -> list[str]:
    rows = "" if entry.num_rows is None else f"{entry.num_rows:,}"
    return [entry.path, f"{entry.num_bytes:,}", rows, entry.checksum]


def _table_row(table: TableEntry) -> list[str]:
    settings = ", ".join(
        f"{name}={value}" for name, value in table.optimizer.items() if name != "kind"
    )
    return [
        table.name,
        f"{table.num_rows:,}",
        f"{table.num_removed:,}",
        str(table.dim),
        f"{table.optimizer['kind']}({settings})",
        ", ".join(f"{state.name}[{state.width}]" for state in table.state),
        ", ".join(table.counters),
        str(table.num_shards),
        f"{table.num_bytes:,}",
    ]


def print_problems(results: Sequence[tuple[str, Sequence[CheckpointError]]]) -> None:
    for path, problems in results:
        if not problems:
            print(f"{path}: no damage")
        for problem in problems:
            print(f"{path}: {type(problem).__name__}: {problem}")


def print_diff(found: CheckpointDiff) -> None:
    print(
        f"step {found.step_a} and step {found.step_b}: {'same' if found.is_same else 'different'}"
    )
    rows = [
        [
            table.name,
            *(f"{number:,}" for number in (table.same, table.changed, table.values_changed)),
            f"{table.only_in_a:,}",
            f"{table.only_in_b:,}",
            table.layout,
        ]
        for table in found.tables
    ]
    columns = ["name", "#same", "#changed", "#values changed", "#only in A", "#only in B", "layout"]
    _print_table("rows", columns, rows)
    for table in found.tables:
        for kind, keys in table.keys.items():
            if keys:
                print(f"{table.name}: {kind.replace('_', ' ')}: {', '.join(map(str, keys))}")
    if found.dense:
        _print_table(
            "dense tensors",
            ["name", "what differs", "#largest difference"],
            [
                [
                    entry.name,
                    entry.what.replace("_", " "),
                    "" if entry.max_difference is None else f"{entry.max_difference:g}",
                ]
                for entry in found.dense
            ],
        )
