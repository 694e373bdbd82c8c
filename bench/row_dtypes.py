"""Tables that store rows in 16 and in 8 bits, beside float32: memory, lookup, update and AUC.

    python bench/row_dtypes.py [--quick] [--part tables|quality] [--data FOLDER] [--seeds 5]

Memory and speed: tables of 64 values per row with row-wise Adagrad, all three in one process, in
turns. AUC: recipes on real data, in one process; the difference to float32 is taken seed by seed.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from measure import (
    ROOT,
    argument_parser,
    console,
    interleave,
    judge,
    machine,
    report,
    time_threads,
    write_json,
)
from sparsefleet import optim
from sparsefleet.errors import SparseFleetError
from sparsefleet.store import LocalStore, Normal, RowDtype, TableSpec
from sparsefleet.zoo.recipes import find_recipe

DIM = 64
BATCHES = (2_600, 100)
DTYPES: tuple[RowDtype, ...] = get_args(RowDtype)
RECIPES = ("movielens_deepfm", "movielens_dcn_v2", "census_wide_deep")
TARGET_ROWS = {"bf16": 1.9, "int8": 3.2}
TARGET_AUC = 0.0005


class Side:
    """A filled table, and batches of its keys."""

    def __init__(self, row_dtype: RowDtype, keys: np.ndarray) -> None:
        self.store = LocalStore()
        self.store.define(
            TableSpec(
                name="t",
                dim=DIM,
                optimizer=optim.RowwiseAdagrad(lr=0.01),
                initializer=Normal(0.0, 0.1),
                row_dtype=row_dtype,
            )
        )
        for part in np.array_split(keys, max(len(keys) // 20_000, 1)):
            self.store.pull("t", part)
        rng = np.random.default_rng(1)
        self._batches = {
            size: [rng.choice(keys, size, replace=False) for _ in range(max(100_000 // size, 8))]
            for size in BATCHES
        }
        self._out = {size: np.empty((size, DIM), np.float32) for size in BATCHES}
        self._gradients = rng.normal(size=(max(BATCHES), DIM)).astype(np.float32)

    def bytes_per_row(self) -> float:
        stats = self.store.stats()[0]
        return stats["table.t.memory_bytes"] / stats["table.t.rows"]

    def time(self, action: str, size: int, rounds: int) -> float:
        """Return ns per row, in one thread."""
        batches, out = self._batches[size], self._out[size]

        def lookup() -> None:
            for batch in batches:
                self.store.pull("t", batch, out=out)

        def update() -> None:
            for batch in batches:
                self.store.push("t", batch, self._gradients[:size], unique=True)

        taken = time_threads([lookup if action == "lookup" else update], rounds)
        return taken / (rounds * len(batches) * size) * 1e9


def measure_tables(num_rows: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Return bytes per row and ns per row, by row_dtype."""
    keys = np.random.default_rng(0).integers(0, 2**64, num_rows, dtype=np.uint64)
    sides = {dtype: Side(dtype, keys) for dtype in DTYPES}
    actions = [(action, size) for action in ("lookup", "update") for size in BATCHES]
    taken = interleave(
        {
            f"{dtype} {action} {size}": lambda s=side, a=action, n=size: s.time(a, n, rounds)  # type: ignore[misc]
            for action, size in actions
            for dtype, side in sides.items()
        },
        repeats,
    )
    return {
        dtype: {
            "bytes_per_row": side.bytes_per_row(),
            **{f"{a} {n}": taken[f"{dtype} {a} {n}"] for a, n in actions},
        }
        for dtype, side in sides.items()
    }


def show_tables(found: dict[str, Any], num_rows: int) -> dict[str, Any]:
    actions = [name for name in found["float32"] if name != "bytes_per_row"]
    whole = found["float32"]["bytes_per_row"]
    rows = [
        [
            dtype,
            f"{one['bytes_per_row']:.1f}",
            f"{whole / one['bytes_per_row']:.2f}x",
            *(
                f"{one[action][0]:.0f} [{one[action][1]:.0f} {one[action][2]:.0f}]"
                for action in actions
            ),
        ]
        for dtype, one in found.items()
    ]
    title = f"{num_rows:,} rows x {DIM}, row-wise Adagrad; ns per row, by batch"
    columns = ["", "bytes per row", "rows per GB", *actions]
    report(title, columns, rows)
    for dtype, target in TARGET_ROWS.items():
        gain = whole / found[dtype]["bytes_per_row"]
        judge(f"{dtype}: {gain:.2f}x rows per GB (target about {target})", gain >= target - 0.05)
        for action in actions[: len(BATCHES)]:
            ours, theirs = found[dtype][action][0], found["float32"][action][0]
            judge(f"{dtype}: {action} {ours:.0f} ns, float32 {theirs:.0f}", ours <= theirs)
    return {"title": title, "columns": columns, "rows": rows}


def auc_of(recipe: str, row_dtype: RowDtype, seed: int, data: Path, quick: bool) -> float:
    chosen = find_recipe(recipe)
    settings = replace(chosen.settings, row_dtype=row_dtype)
    if quick:
        settings = replace(settings, epochs=1)
    done = chosen.run(data, mode="local", seed=seed, settings=settings, quiet=True)
    return done.figures["auc"]


def measure_quality(data: Path, seeds: int, quick: bool) -> dict[str, dict[str, list[float]]]:
    """Return the AUC of each seed, by recipe and row_dtype, of recipes whose data is there."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {}
    for recipe in RECIPES[: 1 if quick else None]:
        try:
            find_recipe(recipe).check(data)
        except SparseFleetError as error:
            console.print(f"  {recipe} left out: {error}", markup=False, highlight=False)
            continue
        found[recipe] = {
            dtype: [auc_of(recipe, dtype, seed, data, quick) for seed in range(seeds)]
            for dtype in DTYPES
        }
        console.print(f"  {recipe}: {found[recipe]}", markup=False, highlight=False)
    return found


def show_quality(found: dict[str, dict[str, list[float]]], seeds: int) -> dict[str, Any]:
    rows = []
    for recipe, by_dtype in found.items():
        for dtype, values in by_dtype.items():
            pairs = [x - y for x, y in zip(values, by_dtype["float32"], strict=True)]
            mean, error = statistics.mean(pairs), _standard_error(pairs)
            shown = "" if dtype == "float32" else f"{mean:+.5f} ± {error:.5f}"
            rows.append([f"{recipe} {dtype}", f"{statistics.mean(values):.4f}", shown])
    title = f"AUC, {seeds} seeds; difference to float32 seed by seed, with its standard error"
    columns = ["", "AUC", "to float32"]
    report(title, columns, rows)
    for dtype in TARGET_ROWS:
        pairs = [
            x - y for one in found.values() for x, y in zip(one[dtype], one["float32"], strict=True)
        ]
        if pairs:
            mean = statistics.mean(pairs)
            text = f"{dtype}: AUC {mean:+.5f} over all recipes (target within {TARGET_AUC})"
            judge(text, abs(mean) <= TARGET_AUC)
    return {"title": title, "columns": columns, "rows": rows}


def _standard_error(values: list[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--seeds", type=int, default=5, help="trainings per side (default 5)")
    parser.add_argument("--part", choices=("tables", "quality"), help="only this part")
    options = parser.parse_args()
    num_rows = 50_000 if options.quick else 1_000_000
    seeds = 1 if options.quick else options.seeds
    console.print(f"[bold]Rows in fewer bits[/bold]. {machine()}")
    figures: dict[str, Any] = {"rows": num_rows, "dim": DIM, "tables": []}
    if options.part != "quality":
        found = measure_tables(num_rows, 1 if options.quick else 3, options.repeats)
        figures["tables"].append(show_tables(found, num_rows))
        figures["by_dtype"] = found
    if options.part != "tables":
        auc = measure_quality(options.data, seeds, options.quick)
        figures["tables"].append(show_quality(auc, seeds))
        figures["auc"] = auc
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
