"""How well each mode learns: recipes on real data, compared with local training and plain torch.

    python bench/quality.py --data ../shared/data [--only NAME] [--modes local,async] [--seeds 5]
    python bench/quality.py --resume --minutes 4     # continue a run, and stop again
    python bench/quality.py --parallel 2             # two single-process runs at a time

Every mode runs with its default settings on 2 servers and 2 workers. Modes that average their
workers (sync, hybrid) take half a batch per worker, so that all make the same number of updates
from the same number of examples. GEO needs plain SGD and is compared with local training by plain
SGD. Plain torch (bench/quality_torch.py) trains the same model on dense tables with torch's own
optimizers and loop. A mode followed by `bf16` moves 16-bit numbers over TLS, and is compared with
the mode itself. For each: mean and standard deviation over seeds, and the mean difference to
local training seed by seed with its standard error. More than 0.002 below it is a miss, or unclear
where noise could explain it (Student's t at 95 %): few seeds, small data. All sides run with one
seed before the next begins, so that a run that is stopped compares them fairly. The report is
Markdown and JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import ROOT, console, machine
from sparsefleet.zoo.recipes import find_recipe

RECIPES = (
    "census_wide_deep",
    "movielens_deepfm",
    "movielens_dcn_v2",
    "movielens_din",
    "movielens_two_tower",
    "movielens_sasrec",
    "movielens_100k_deepfm",
    "movielens_100k_dcn_v2",
    "books_deepfm",
    "books_dcn_v2",
    "talkingdata_deepfm",
    "avazu_deepfm",
    "criteo_deepfm",
)
AVERAGING = ("sync", "hybrid")
SINGLE_PROCESS = ("local", "torch", "local sgd")
SIDES = ("local", "torch", "sync", "half_async", "async", "hybrid", "local sgd", "geo")
TOLERANCE = 0.002
STUDENT_T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Quantiles of 95 %, two-sided, by number of seeds."""
DEADLINE_S = 1800.0
NARROW = " bf16"
LAUNCH_NARROW = ("--native-servers", "--transport", "tls", "--env", "SPARSEFLEET_WIRE_DTYPE=bf16")

Run = tuple[str, str, int]
"""A recipe, a side and a seed."""
Runs = dict[str, list[dict[str, float]]]
"""By side, the figures of each seed."""


def command_of(
    recipe: str, side: str, seed: int, out: Path, options: argparse.Namespace
) -> list[str]:
    flags = ["--data", str(options.data), "--seed", str(seed), "--out", str(out), "--quiet"]
    if options.epochs is not None:
        flags += ["--epochs", str(options.epochs)]
    if side == "torch":
        return [sys.executable, str(ROOT / "bench" / "quality_torch.py"), recipe, *flags]
    mode = side.removesuffix(" sgd").removesuffix(NARROW)
    if side == "local sgd" or mode == "geo":
        flags.append("--plain-sgd")
    if mode in AVERAGING:
        flags += ["--batch-size", str(find_recipe(recipe).settings.batch_size // 2)]
    program, job = [sys.executable, "-m", "sparsefleet"], ["--servers", "2", "--workers", "2"]
    if side.endswith(NARROW):
        job += [*LAUNCH_NARROW, "--log-dir", f"{out}/logs", "--quiet", "-m"]
        worker = ["sparsefleet.zoo.recipes.run", recipe, "--mode", mode, *flags]
        return [*program, "launch", *job, *worker]
    if mode != "local":
        flags += job
    return [*program, "recipe", "run", recipe, "--mode", mode, *flags]


def figures_of(recipe: str, side: str, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Run one side in separate processes; raise RuntimeError if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = command_of(recipe, side, seed, Path(folder), options)
        done = subprocess.run(
            command,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-1500:]}")
        found: dict[str, float] = json.loads((Path(folder) / "report.json").read_text())["figures"]
        return found


def standard_error(differences: list[float]) -> float:
    """Return the error of the mean; NaN for fewer than two seeds."""
    if len(differences) < 2:
        return math.nan
    return statistics.stdev(differences) / len(differences) ** 0.5


def verdict_of(differences: list[float]) -> str:
    if len(differences) < 2:
        return "unclear"
    difference, noise = statistics.mean(differences), standard_error(differences)
    if difference >= -TOLERANCE:
        return "met"
    reach = STUDENT_T.get(len(differences), 2.6) * noise
    return "unclear" if difference + reach >= -TOLERANCE else "missed"


def table_of(runs: Runs, metric: str) -> list[str]:
    """Return lines of Markdown: mean, spread, and difference to the local twin."""
    lines = [
        f"| {metric} | seeds | mean | spread | to local | error | |",
        "|---|---|---|---|---|---|---|",
    ]
    for side, found in runs.items():
        values = [one[metric] for one in found]
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
        twin = runs.get("local sgd" if side == "geo" else "local", [])
        if side.endswith(NARROW):
            twin = runs.get(side.removesuffix(NARROW), [])
        shown, error, verdict = "", "", ""
        if twin and not side.startswith("local"):
            pairs = zip(values, (one[metric] for one in twin), strict=False)
            differences = [ours - theirs for ours, theirs in pairs]
            difference, noise = statistics.mean(differences), standard_error(differences)
            shown, error = f"{difference:+.4f}", "" if math.isnan(noise) else f"{noise:.4f}"
            verdict = verdict_of(differences)
        lines.append(
            f"| {side} | {len(values)} | {statistics.mean(values):.4f} | {spread} | {shown} "
            f"| {error} | {verdict} |"
        )
    return lines


def order_of_side(side: str) -> tuple[int, bool]:
    return SIDES.index(side.removesuffix(NARROW)), side.endswith(NARROW)


def wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def page_of(found: dict[str, Runs], options: argparse.Namespace) -> str:
    lines = ["# Quality of the modes", "", wrapped(f"{machine()}. {options.note}")]
    lines += [f"Command: `bench/quality.py {' '.join(sys.argv[1:])}`.", ""]
    lines += [line.strip() for line in (__doc__ or "").split("\n\n", 2)[2].splitlines()]
    for name in sorted(found, key=RECIPES.index):
        recipe, runs = find_recipe(name), found[name]
        lines += ["", f"## {recipe.title}", "", wrapped(f"{recipe.protocol}.")]
        for one in recipe.published:
            lines += ["", wrapped(f"Published: {one.metric} {one.value} ({one.where}).")]
        ordered = {side: runs[side] for side in sorted(runs, key=order_of_side)}
        for metric in next(iter(ordered.values()))[0]:
            lines += ["", *table_of(ordered, metric)]
    return "\n".join(lines) + "\n"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--only", default=",".join(RECIPES), help="recipes, separated by commas")
    parser.add_argument("--modes", default=",".join(SIDES), help="sides, separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="runs per side (default 5)")
    parser.add_argument("--epochs", type=int, help="in place of the recipes'")
    parser.add_argument(
        "--parallel", type=int, default=1, help="single-process runs at a time (default 1)"
    )
    parser.add_argument("--resume", action="store_true", help="keep the runs of the JSON report")
    parser.add_argument("--minutes", type=float, help="begin no run after this time; see --resume")
    parser.add_argument("--note", default="", help="for the report: what else the machine did")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "quality.md")
    return parser.parse_args()


def write(found: dict[str, Runs], options: argparse.Namespace) -> None:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(page_of(found, options))
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


def groups_of(found: dict[str, Runs], options: argparse.Namespace) -> list[list[Run]]:
    """Return the missing runs, seed by seed, in groups that run at the same time.

    Up to `--parallel` runs of a single process share the machine; a fleet has it to itself.
    """
    groups: list[list[Run]] = []
    for seed in range(options.seeds):
        missing = [
            (recipe, side, seed)
            for recipe in options.only.split(",")
            for side in options.modes.split(",")
            if len(found.get(recipe, {}).get(side, [])) <= seed
        ]
        alone = [run for run in missing if run[1] in SINGLE_PROCESS]
        size = options.parallel
        groups += [alone[at : at + size] for at in range(0, len(alone), size)]
        groups += [[run] for run in missing if run[1] not in SINGLE_PROCESS]
    return groups


def main() -> None:
    options = parse_arguments()
    end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    found: dict[str, Runs] = {}
    if options.resume and options.out.with_suffix(".json").exists():
        found = json.loads(options.out.with_suffix(".json").read_text())
    for recipe in options.only.split(","):
        find_recipe(recipe).check(options.data)
    with ThreadPoolExecutor(options.parallel) as pool:
        for group in groups_of(found, options):
            if time.monotonic() > end:
                sys.exit(f"stopped after {options.minutes} minutes; --resume continues")
            results = pool.map(lambda run: figures_of(*run, options), group)
            for (recipe, side, seed), figures in zip(group, results, strict=True):
                found.setdefault(recipe, {}).setdefault(side, []).append(figures)
                console.print(f"{recipe} {side} {seed}: {figures}", highlight=False, markup=False)
                write(found, options)  # after each run: all of them take hours
    console.print(page_of(found, options), highlight=False, markup=False)


if __name__ == "__main__":
    main()
