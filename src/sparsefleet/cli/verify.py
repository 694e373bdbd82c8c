"""`sparsefleet verify`: compare a deployed model with its export and with the training result."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sparsefleet.cli.option_names import naming_options
from sparsefleet.cli.serve import read_token
from sparsefleet.errors import ConfigError, SparseFleetError

__all__ = ["VERIFY_DESCRIPTION", "add_verify_flags", "run_verify_command"]

VERIFY_DESCRIPTION = """\
Compares the exported model in MODEL_DIR with what is online and with what was trained: pruning,
dense parameters and rows, inputs, predictions, settings. Reports what is wrong and where to look
first. Exit codes: 0 if all checks pass, 1 if one fails, 2 if nothing could be compared because a
path or flag is wrong. To check only the files of an exported model for damage, use `sparsefleet
export verify`; for a checkpoint, use `sparsefleet checkpoint verify`.
"""


def add_verify_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="MODEL_DIR", type=Path, help="the exported model")
    parser.add_argument(
        "--online",
        metavar="SIDE",
        action="append",
        default=[],
        help="the other side of the comparison: a service (http://...), a row store "
        "(redis://...), a checkpoint or another exported model (a directory), or running "
        "servers (host:port,host:port). May be repeated; without it, only the exported "
        "model is checked",
    )
    parser.add_argument(
        "--examples",
        metavar="FILE",
        type=Path,
        help="examples in .parquet, .csv, .json or .jsonl (default: the golden examples of the "
        "exported model)",
    )
    parser.add_argument(
        "--online-examples",
        metavar="FILE",
        type=Path,
        help="the examples as the online side prepared them, in the same order",
    )
    parser.add_argument(
        "--label", metavar="COLUMN", help="column of labels in --examples, for the AUC"
    )
    parser.add_argument(
        "--max-examples", type=int, default=10_000, help="examples to compare (default 10000)"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        default=1e-5,
        help="largest difference between scores, relative for scores above 1 (default 1e-5)",
    )
    parser.add_argument(
        "--sample", type=int, metavar="ROWS", help="rows to compare per table (default: all)"
    )
    parser.add_argument(
        "--previous",
        metavar="DIRECTORY",
        type=Path,
        help="the previously exported model, used to recognize stale rows",
    )
    parser.add_argument(
        "--updates",
        metavar="WHERE",
        help="where training publishes updates to the exported model (a directory or "
        "redis://...); they are applied before the comparison",
    )
    _add_expectations(parser)
    parser.add_argument("--report", metavar="FILE", type=Path, help="write HTML, or JSON (.json)")


def _add_expectations(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pruned",
        metavar="PATTERN",
        action="append",
        default=[],
        help="trained parameters and tables that were deliberately not exported: 'other.*'",
    )
    parser.add_argument(
        "--expect",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a required setting, such as engine=onnx or rows=float32",
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="file with the bearer token of the service (default: SPARSEFLEET_SERVE_TOKEN, if set)",
    )
    parser.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=90.0,
        help="time limit per request (default 90)",
    )


def run_verify_command(options: argparse.Namespace) -> int:
    try:
        return _verify(options)
    except SparseFleetError as error:
        print(f"sparsefleet verify: error: {error}", file=sys.stderr)
        return 2


def _verify(options: argparse.Namespace) -> int:
    from rich.console import Console

    from sparsefleet.serving.verify import VerifyConfig, verify
    from sparsefleet.serving.verify.report import print_report, write_html

    if options.report is not None and options.report.suffix not in (".html", ".json"):
        raise ConfigError(f"--report must end with .html or .json, got {options.report}")
    if options.report is not None and not options.report.absolute().parent.is_dir():
        raise ConfigError(
            f"--report {options.report}: there is no directory {options.report.parent}; create it"
        )
    with naming_options("VerifyConfig", timeout_s="--timeout"):
        config = VerifyConfig(
            examples=options.examples,
            online_examples=options.online_examples,
            label=options.label,
            max_examples=options.max_examples,
            tolerance=options.tolerance,
            sample=options.sample,
            previous=options.previous,
            updates=options.updates,
            pruned=tuple(options.pruned),
            expect=_expected(options.expect),
            token=read_token(options.token_file),
            timeout_s=options.timeout,
        )
    report = verify(options.directory, options.online, config)
    print_report(report, Console(width=None if sys.stdout.isatty() else 160))
    if options.report is not None and options.report.suffix == ".json":
        options.report.write_text(report.to_json(), encoding="utf-8")
    elif options.report is not None:
        write_html(report, options.report, config.tolerance)
    return 0 if report.passed else 1


def _expected(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals and value):
            raise ConfigError(f"--expect must be NAME=VALUE, got {name + equals + value!r}")
    return {name: value for name, _, value in pairs}
