"""`sparsefleet predict`: write an exported model's predictions for the examples in a file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from sparsefleet.errors import ConfigError

__all__ = ["PREDICT_DESCRIPTION", "add_predict_flags", "run_predict_command"]

PREDICT_DESCRIPTION = """\
Predicts the examples in a file with the exported model in DIRECTORY, and prints the predictions as
CSV or writes them to a file. The file has one column per input of the model (`sparsefleet export
show DIRECTORY` lists them). An input with several values per example is a list or, in CSV, numbers
separated by spaces.
"""


def add_predict_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIRECTORY", type=Path, help="the exported model")
    parser.add_argument(
        "--examples",
        metavar="FILE",
        type=Path,
        required=True,
        help="examples in .parquet, .csv, .json (a list of objects) or .jsonl",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=Path, help="file for the predictions, in the same formats"
    )
    parser.add_argument(
        "--engine",
        choices=("torch", "onnx", "auto"),
        default="auto",
        help="inference engine (default auto: ONNX if exported, else torch)",
    )
    parser.add_argument(
        "--batch", type=int, default=4096, help="examples per prediction (default 4096)"
    )


def run_predict_command(options: argparse.Namespace) -> int:
    from sparsefleet.serving import Predictor
    from sparsefleet.serving.example_files import (
        check_suffix,
        predictions_as_text,
        read_examples,
        write_predictions,
    )

    if options.out is not None:
        check_suffix(options.out)
    if options.batch < 1:
        raise ConfigError(f"--batch must be >= 1, got {options.batch}")
    predictor = Predictor(options.directory, engine=options.engine)
    for target in predictor.schema.targets:
        if target.shape[:1] != ("batch",):
            raise ConfigError(
                f"target {target} of {options.directory} must have one value per example; export "
                "the model with targets= that have one"
            )
    batches = read_examples(options.examples, predictor.schema, options.batch)
    parts = [predictor.predict_all(batch) for batch in batches]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if options.out is None:
        sys.stdout.write(predictions_as_text(found))
    else:
        write_predictions(options.out, found)
    return 0
