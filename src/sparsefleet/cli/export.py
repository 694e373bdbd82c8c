"""`sparsefleet export show|verify`: inspect an exported model or check its files for damage."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from sparsefleet.serving.export import ExportManifest

__all__ = ["EXPORT_DESCRIPTION", "add_export_flags", "run_export_command"]

EXPORT_DESCRIPTION = """\
show: list inputs, targets, lookups, tables with the error of their format, and files.
verify: read all files and compare their checksums. To compare the model with a running service or
a checkpoint, use `sparsefleet verify`; to check a checkpoint, `sparsefleet checkpoint verify`.
"""


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("show", "verify"))
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="the exported model")


def run_export_command(options: argparse.Namespace) -> int:
    from sparsefleet.serving.export import read_manifest, verify_export

    if options.action == "verify":
        manifest = verify_export(options.directory)
        total = sum(file.bytes for file in manifest.files)
        print(f"{options.directory}: {len(manifest.files)} files, {total:,} bytes, no damage")
    else:
        _show(read_manifest(options.directory))
    return 0


def _show(manifest: ExportManifest) -> None:
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 160)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.made_by.items())
    console.print(f"exported {manifest.created} by {versions}", highlight=False)
    golden = manifest.golden
    console.print(
        f"{golden.examples} golden examples, largest error {golden.largest_error:.2g}",
        highlight=False,
    )
    onnx = "ONNX: yes" if manifest.onnx.steps else f"ONNX: no, {manifest.onnx.missing}"
    console.print(onnx, markup=False, highlight=False)
    for table in (_arrays(manifest), _lookups(manifest), _tables(manifest), _files(manifest)):
        console.print(table)


def _grid(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _arrays(manifest: ExportManifest) -> Table:
    from rich.text import Text

    table = _grid("inputs and targets", "", "array")
    for item in manifest.schema.inputs:
        table.add_row("ragged input" if item.is_ragged else "input", Text(str(item)))
    for target in manifest.schema.targets:
        table.add_row("target", Text(str(target)))
    return table


def _lookups(manifest: ExportManifest) -> Table:
    from rich.text import Text

    table = _grid("lookups", "table", "ids", "padding", "value of unknown ids")
    for lookup in manifest.schema.lookups:
        padding = "-" if lookup.padding_id is None else str(lookup.padding_id)
        reads = "zeros" if lookup.unknown == "zeros" else "initial values"
        table.add_row(Text(lookup.table), Text(lookup.ids or "computed"), padding, reads)
    return table


def _tables(manifest: ExportManifest) -> Table:
    from rich.text import Text

    table = _grid("tables", "table", "rows", "width", "format", "largest error", "mean error")
    for entry in manifest.tables:
        table.add_row(
            Text(entry.name),
            f"{entry.rows:,}",
            str(entry.dim),
            entry.format,
            f"{entry.largest_error:.3g}",
            f"{entry.mean_error:.3g}",
        )
    return table


def _files(manifest: ExportManifest) -> Table:
    table = _grid("files", "file", "bytes", "SHA-256")
    for file in manifest.files:
        table.add_row(file.name, f"{file.bytes:,}", file.sha256[:16] + "...")
    return table
