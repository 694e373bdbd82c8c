"""The commands of `sparsefleet checkpoint`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.diff import CheckpointDiff, diff
from sparsefleet.checkpoint.folder import open_folder
from sparsefleet.checkpoint.import_export import export_table, import_paddle, import_vectors
from sparsefleet.checkpoint.manifest import FileEntry, TableEntry
from sparsefleet.checkpoint.names import MANIFEST
from sparsefleet.checkpoint.row_chunk import COLUMNS
from sparsefleet.checkpoint.series import ListedCheckpoint, compact, list_checkpoints
from sparsefleet.errors import CheckpointError, CheckpointMissingError, ConfigError

__all__ = [
    "CHECKPOINT_DESCRIPTION",
    "add_checkpoint_commands",
    "listed_json",
    "print_diff",
    "print_json",
    "print_listed",
    "print_manifest",
    "print_problems",
    "problem_json",
    "run_checkpoint_command",
]

CHECKPOINT_DESCRIPTION = """\
Inspects, verifies, compares and converts checkpoints. PATH is a directory or an fsspec URL such as
s3://bucket/run/step-000000001000. Exit codes: 0 for success, 1 if a checkpoint is damaged or two
differ, 2 for a wrong command line.
"""
_PATH_HELP = "directory or URL of a checkpoint"
_SERIES_HELP = "directory or URL of a checkpoint, or of a folder of checkpoints (step-...)"

_Commands = Any  # argparse has no public name for it


def add_checkpoint_commands(parser: argparse.ArgumentParser) -> None:
    """Add a parser for each subcommand."""
    commands = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    _add(commands, "ls", _run_ls, "list the checkpoints in a folder").add_argument(
        "path", metavar="PATH", help=_SERIES_HELP
    )
    show = _add(commands, "show", _run_show, "show the contents of a checkpoint")
    show.add_argument("path", metavar="PATH", help=_PATH_HELP)
    show.add_argument("--files", action="store_true", help="also list files with their checksums")
    verify = _add(commands, "verify", _run_verify, "check the files of checkpoints for damage")
    verify.add_argument("path", metavar="PATH", help=_SERIES_HELP)
    verify.add_argument(
        "--quick", action="store_true", help="check file sizes only, not checksums or rows"
    )
    _add_diff(commands)
    _add_export(commands)
    packed = _add(commands, "compact", _run_compact, "turn a delta into a full checkpoint")
    packed.add_argument("path", metavar="PATH", help=_PATH_HELP)
    packed.add_argument(
        "--output", metavar="TARGET", help="where to write it (default: replace PATH)"
    )
    _add_import(commands)


def _add(
    commands: _Commands, name: str, run: Callable[[argparse.Namespace], int], summary: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}."
    )
    parser.set_defaults(parser=parser, run=run)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--storage-options",
        type=_json_object,
        metavar="JSON",
        help="options for fsspec, as a JSON object",
    )
    return parser


def _add_diff(commands: _Commands) -> None:
    parser = _add(commands, "diff", _run_diff, "show which rows and tensors differ")
    parser.add_argument("path", metavar="A", help=_PATH_HELP)
    parser.add_argument("other", metavar="B", help="another checkpoint")
    parser.add_argument(
        "--keys",
        type=int,
        default=10,
        metavar="N",
        help="list up to N keys of each kind of difference (default 10)",
    )


def _add_export(commands: _Commands) -> None:
    parser = _add(commands, "export", _run_export, "write a table to a Parquet or CSV file")
    parser.add_argument("path", metavar="PATH", help=_PATH_HELP)
    parser.add_argument("--table", metavar="NAME", help="table to write (default: the only one)")
    parser.add_argument(
        "--output",
        metavar="FILE",
        required=True,
        help="file to create; its suffix determines the format: .parquet or .csv",
    )
    parser.add_argument(
        "--columns",
        nargs="*",
        choices=COLUMNS,
        default=list(COLUMNS),
        help="columns besides the key (default: all)",
    )


def _add_import(commands: _Commands) -> None:
    parser = _add(commands, "import", _run_import, "create a checkpoint from a different format")
    parser.description = (
        "Creates a checkpoint from a .csv or .parquet file of keys and vectors, or from a "
        "directory written by PaddlePaddle 1.x (save_persistables, save_inference_model)."
    )
    parser.add_argument("path", metavar="SOURCE", help="a file, or a Paddle directory")
    parser.add_argument(
        "target", metavar="TARGET", help="directory or URL of the checkpoint to create"
    )
    parser.add_argument(
        "--table",
        action="append",
        metavar="NAME",
        help="name of the table; for Paddle, a variable to turn into a table (may be repeated)",
    )
    parser.add_argument(
        "--key-column",
        metavar="NAME",
        help="column with the keys (default: 'key', or the first column)",
    )
    parser.add_argument("--no-header", action="store_true", help="the .csv has no header line")
    parser.add_argument(
        "--params-file", metavar="NAME", help="for Paddle, the file that holds all variables"
    )
    parser.add_argument(
        "--names",
        nargs="+",
        metavar="NAME",
        help="for Paddle, the variables to import, or those in the params file (default: all)",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def run_checkpoint_command(options: argparse.Namespace) -> int:
    """Run the command and return the exit code. Raises ConfigError for an invalid command line."""
    run: Callable[[argparse.Namespace], int] = options.run
    return run(options)


def _listed(options: argparse.Namespace) -> list[ListedCheckpoint]:
    """Return the checkpoint at the path, or all checkpoints if the path is a series."""
    folder = open_folder(options.path, options.storage_options)
    if folder.size(MANIFEST) is None:
        found = list_checkpoints(options.path, options.storage_options)
        if not found:
            raise CheckpointMissingError(f"{folder.root}: expected a checkpoint, found none")
        return found
    try:
        manifest = Checkpoint.at(folder).manifest
    except CheckpointError as error:
        return [ListedCheckpoint(folder.root, 0, None, error)]
    return [ListedCheckpoint(folder.root, manifest.step, manifest, None)]


def _run_ls(options: argparse.Namespace) -> int:
    found = _listed(options)
    if options.json:
        print_json([listed_json(listed) for listed in found])
    else:
        print_listed(found)
    return int(any(listed.problem is not None for listed in found))


def _run_show(options: argparse.Namespace) -> int:
    checkpoint = Checkpoint.open(options.path, options.storage_options)
    if options.json:
        print_json(json.loads(checkpoint.manifest.to_bytes()))
    else:
        print_manifest(checkpoint, with_files=options.files)
    return 0


def _run_verify(options: argparse.Namespace) -> int:
    results: list[tuple[str, Sequence[CheckpointError]]] = []
    for listed in _listed(options):
        if listed.problem is not None:
            results.append((listed.path, [listed.problem]))
            continue
        checkpoint = Checkpoint.open(listed.path, options.storage_options)
        results.append((listed.path, list(checkpoint.problems(deep=not options.quick))))
    if options.json:
        print_json(
            [
                {"path": path, "problems": [problem_json(problem) for problem in problems]}
                for path, problems in results
            ]
        )
    else:
        print_problems(results)
    return int(any(problems for _, problems in results))


def _run_diff(options: argparse.Namespace) -> int:
    if options.keys < 0:
        raise ConfigError(f"--keys must be >= 0, got {options.keys}")
    a = Checkpoint.open(options.path, options.storage_options)
    b = Checkpoint.open(options.other, options.storage_options)
    found = diff(a, b, max_keys=options.keys)
    if options.json:
        print_json(found.to_json())
    else:
        print_diff(found)
    return int(not found.is_same)


def _run_export(options: argparse.Namespace) -> int:
    checkpoint = Checkpoint.open(options.path, options.storage_options)
    names = [table.name for table in checkpoint.manifest.tables]
    if options.table is None and len(names) != 1:
        raise ConfigError(f"--table is required, because the checkpoint has the tables {names}")
    table = options.table or names[0]
    num_rows = export_table(
        checkpoint,
        table,
        options.output,
        columns=options.columns,
        storage_options=options.storage_options,
    )
    if options.json:
        print_json({"table": table, "rows": num_rows, "output": options.output})
    else:
        print(f"{options.output}: {num_rows:,} rows of table {table!r}")
    return 0


def _run_import(options: argparse.Namespace) -> int:
    tables = options.table or []
    if ".csv" in options.path or options.path.endswith(".parquet"):
        if len(tables) != 1:
            raise ConfigError(
                "--table must be given exactly once, with the name of the table to create"
            )
        manifest = import_vectors(
            options.path,
            options.target,
            table=tables[0],
            key_column=options.key_column,
            has_header=not options.no_header,
            storage_options=options.storage_options,
        )
    else:
        manifest = import_paddle(
            options.path,
            options.target,
            tables=tables,
            filename=options.params_file,
            names=options.names,
            storage_options=options.storage_options,
        )
    if options.json:
        print_json(json.loads(manifest.to_bytes()))
    else:
        rows = sum(table.num_rows for table in manifest.tables)
        dense = len(manifest.dense)
        print(f"{options.target}: {rows:,} rows of {len(manifest.tables)} tables, {dense} tensors")
    return 0


def _run_compact(options: argparse.Namespace) -> int:
    manifest = compact(options.path, options.output, options.storage_options)
    if options.json:
        print_json(json.loads(manifest.to_bytes()))
    else:
        place = options.output or options.path
        print(f"{place}: full checkpoint at step {manifest.step}, {manifest.num_bytes:,} bytes")
    return 0


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
