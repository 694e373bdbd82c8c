"""word2vec: ours, PaddlePaddle 1.8.5, gensim, plain torch, and its products alone.

    python bench/word2vec.py [--quick] [--repeats 5] [--json FILE]

Skip-gram with 5 noise words, 50,000 words following Zipf's law, rows of 300, a bias per context
(gensim has none), SGD. Pairs are parsed and in memory; gensim makes its own from sentences. Sides
take turns as in bench/ctr_dnn.py. The floor is the products of the forward and backward pass: rows
are neither fetched nor changed. A full run also scores the vectors (bench/word2vec_quality.py).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from ctr_names import GENSIM, OURS, OURS_BY_TORCH, PADDLE, PRODUCTS, TORCH
from ctr_rounds import RoundsConfig, run_rounds
from ctr_start import PROGRAM, SideSpec, Sources, fleet
from measure import argument_parser, console, machine, report, write_json
from paddle_environment import find_paddle
from word2vec_pairs import write_pair_files
from word2vec_quality import measure_quality
from word2vec_tables import memory_table, rate_table, told_sides

BATCH, LARGE_BATCH = 100, 1000
SPECS = (
    SideSpec(engine=PRODUCTS, workers=2),
    *(SideSpec(engine=engine, threads=n) for n in (1, 2) for engine in (OURS, PADDLE, TORCH)),
    SideSpec(engine=OURS_BY_TORCH, threads=2),
    *(fleet(mode, engine) for mode in ("async", "geo") for engine in (OURS, PADDLE)),
    SideSpec(engine=GENSIM, threads=2),
)
LEFT_OUT_OF_QUICK = (
    "sparsefleet local 1",
    f"{OURS_BY_TORCH} local 2",
    "torch local 1",
    "torch local 2",
    "PaddlePaddle local 1",
    "PaddlePaddle async 2x2",
    "PaddlePaddle geo 2x2",
)
"""Processes take seconds to start, and a quick run lasts only minutes."""
PADDLE_LINES = {False: 20_000, True: 1_000}
"""Pairs in each of two files, by --quick: Paddle trains on all its files in each section."""


def rounds_config(options: argparse.Namespace) -> RoundsConfig:
    batches = (BATCH, LARGE_BATCH)
    if options.quick:
        return RoundsConfig(repeats=1, section_s=0.2, warm_examples=4_000, batches=batches)
    return RoundsConfig(
        repeats=options.repeats, section_s=1.0, warm_examples=20_000, batches=batches
    )


def measure_speed(folder: Path, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Return the figures of each side, as `run_rounds` does."""
    paddle, missing = find_paddle(may_install=not options.quick)
    sources = Sources(
        folder=folder,
        program=PROGRAM.with_name("word2vec_sides.py"),
        paddle_program=PROGRAM.with_name("paddle_word2vec.py"),
        paddle_files=write_pair_files(folder, 2, PADDLE_LINES[options.quick]),
        paddle=paddle,
        paddle_missing=missing,
    )
    left_out = LEFT_OUT_OF_QUICK if options.quick else ()
    specs = [spec for spec in SPECS if spec.name not in left_out]
    return run_rounds(specs, sources, rounds_config(options))


def main() -> None:
    options = argument_parser(__doc__ or "").parse_args()
    console.print("[bold]word2vec[/bold]: 50,000 words x 300, 5 noise words, SGD.")
    console.print(machine())
    with tempfile.TemporaryDirectory() as folder:
        figures = measure_speed(Path(folder), options)
    sides, of_large = told_sides(figures, BATCH), told_sides(figures, LARGE_BATCH)
    tables = [rate_table(f"batch {LARGE_BATCH}", of_large), memory_table(figures)]
    for table in (rate_table(f"batch {BATCH}", sides), *tables):
        report(table["title"], ["", *table["columns"][1:]], table["rows"])
    notes = [
        f"The first table is for batch {BATCH}. gensim has no batches, no biases, and updates rows "
        "after each pair without locks.",
        f"sparsefleet multiplies rows with embedding_dots; {OURS_BY_TORCH} gathers them and "
        "multiplies them as torch does.",
    ]
    if not options.quick:
        scores, about = measure_quality(quick=False)
        for table in scores:
            report(table["title"], ["", *table["columns"][1:]], table["rows"])
        tables, notes = [*tables, *scores], [*notes, *about]
    by_batch = {BATCH: sides, LARGE_BATCH: of_large}
    told = {"sides": sides, "by_batch": by_batch, "tables": tables, "notes": notes}
    write_json(options.json, told)


if __name__ == "__main__":
    main()
