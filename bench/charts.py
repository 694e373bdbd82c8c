"""Draws PNG charts from a day's record, for the README and the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from ctr_names import OURS, PADDLE, TORCH
from day_record import DayRecord
from side_medians import BATCHES, SideMedians

COLOURS = ("#1f6feb", "#d1812d", "#2da44e", "#8250df", "#cf222e", "#57606a", "#0a7ea4")
ENGINE_COLOURS = dict(zip((OURS, PADDLE, TORCH), COLOURS, strict=False))
DOTS_PER_INCH = 150
THOUSANDS = StrMethodFormatter("{x:,.0f}")
PLACES = (
    ("local", "local 2", "1 process,\n2 threads"),
    ("rounds", "sync 2x2", "sync"),
    ("rounds", "half_async 2x2", "half_async"),
    ("background", "async 2x2", "async"),
    ("background", "geo 2x2", "geo"),
)
"""Group, side and label under the bars."""
COMPARED = (OURS, "PaddlePaddle 1.8.5", "torch (on servers: DDP)")


def draw_charts(record: DayRecord, folder: Path) -> dict[str, list[Path]]:
    """Chart files by part; "" has those that combine several parts."""
    drawn: dict[str, list[Path]] = {}
    folder.mkdir(parents=True, exist_ok=True)
    ctr = SideMedians(record)
    if any(group in ctr.groups for group in ("local", "rounds", "background")):
        drawn[""] = [
            _save(_ctr_bars(ctr, "rate"), folder / "bench_ctr_rates.png"),
            _save(_ctr_bars(ctr, "cpu_us"), folder / "bench_ctr_cpu.png"),
        ]
    for name in record.parts:
        if name.startswith("growth-") and (figures := record.figures(name)) is not None:
            drawn[name] = [
                _save(_lines(figure), folder / f"bench_{figure['name']}.png")
                for figure in figures.values()
                if isinstance(figure, dict) and figure["series"]
            ]
    figures = record.figures("quality") or {}
    generated = figures if "sides" in figures else figures.get("generated", {})
    if "sides" in generated:  # older records have no other data
        drawn["quality"] = [_save(_auc_bars(generated), folder / "bench_auc.png")]
    for name in ("word2vec", "collective"):
        sides = (record.figures(name) or {}).get("sides", {})
        if any(one.get("rate") for one in sides.values()):
            drawn[name] = [_save(_rate_bars(sides), folder / f"bench_{name}.png")]
    return drawn


def _ctr_bars(ctr: SideMedians, what: str) -> Figure:
    """For each batch size: sparsefleet, Paddle and torch in each mode, and the floor above."""
    figure, every_axes = plt.subplots(1, len(BATCHES), figsize=(11, 4.2), layout="constrained")
    for axes, batch in zip(every_axes, BATCHES, strict=True):
        get = getattr(ctr, what)
        theirs = {"local": f"{TORCH} local 2"}
        bars = {
            OURS: [get(group, f"{OURS} {how}", batch) for group, how, _ in PLACES],
            "PaddlePaddle 1.8.5": [
                get(group, f"{PADDLE} {how}", batch) for group, how, _ in PLACES
            ],
            "torch (on servers: DDP)": [
                get(group, theirs.get(group, f"{TORCH} DDP 2"), batch) for group, _, _ in PLACES
            ],
        }
        _draw_bars(axes, bars, [name for _, _, name in PLACES])
        if what == "rate":
            _draw_floor(axes, [ctr.floor(group, batch) for group, _, _ in PLACES])
        axes.set_title(f"batch {batch}")
        axes.set_ylabel("examples/s" if what == "rate" else "CPU us an example, all processes")
    handles, labels = every_axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _draw_bars(axes: Axes, bars: Mapping[str, list[float | None]], names: list[str]) -> None:
    width = 0.8 / len(bars)
    for index, (label, heights) in enumerate(bars.items()):
        places = [place + (index - (len(bars) - 1) / 2) * width for place in range(len(names))]
        axes.bar(
            places, [height or 0 for height in heights], width, label=label, color=COLOURS[index]
        )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.yaxis.set_major_formatter(THOUSANDS)
    _plain(axes)


def _draw_floor(axes: Axes, floors: list[float | None]) -> None:
    label: str | None = "matrix products alone"
    for place, floor in enumerate(floors):
        if floor is not None:
            axes.hlines(floor, place - 0.45, place + 0.45, colors="black", lw=1.2, label=label)
            label = None


def _auc_bars(figures: Mapping[str, Any]) -> Figure:
    scores = {name: one["auc"] for name, one in figures["sides"].items() if "auc" in one}
    figure, axes = _side_bars(scores)
    axes.axvline(figures["best"], color="black", lw=1)
    axes.set_xlim(0.5, figures["best"] + 0.02)
    trained = figures["examples"] * figures.get("epochs", 1)
    axes.set_xlabel(f"AUC after {trained:,} examples; the line: best possible")
    return figure


def _rate_bars(sides: Mapping[str, Any]) -> Figure:
    """Draw the chart of a script that reports `sides`."""
    told = {name: one for name, one in sides.items() if one.get("rate")}
    figure, axes = _side_bars({n: statistics.median(one["rate"]) for n, one in told.items()})
    axes.set_xlabel(next(iter(told.values())).get("unit", "a second"))
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.locator_params(axis="x", nbins=4)  # long numbers
    return figure


def _side_bars(values: Mapping[str, float]) -> tuple[Figure, Axes]:
    """Draw horizontal bars in the color of their engine."""
    figure, axes = plt.subplots(figsize=(7, 0.35 * len(values) + 1.2), layout="constrained")
    colours = [ENGINE_COLOURS.get(name.split()[0], COLOURS[5]) for name in values]
    axes.barh(list(values), list(values.values()), color=colours)
    axes.invert_yaxis()
    _plain(axes)
    return figure, axes


def _lines(wanted: Mapping[str, Any]) -> Figure:
    """Draw medians as lines, with the range from minimum to maximum shaded."""
    figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
    for (name, points), colour in zip(wanted["series"].items(), COLOURS, strict=False):
        xs, medians, least, greatest = zip(*sorted(points), strict=True)
        axes.plot(xs, medians, marker="o", ms=4, label=name, color=colour)
        axes.fill_between(xs, least, greatest, color=colour, alpha=0.15, lw=0)
    xs = sorted({point[0] for points in wanted["series"].values() for point in points})
    if wanted["is_x_log"]:
        axes.set_xscale("log")
    if wanted["is_y_log"]:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(xs, [f"{x:,g}" if x < 1e5 else f"{x:.0e}".replace("e+0", "e") for x in xs])
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.minorticks_off()
    axes.set_xlabel(wanted["x_label"])
    axes.set_ylabel(wanted["y_label"])
    axes.set_title(wanted["title"], fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    _plain(axes)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)


def _save(figure: Figure, path: Path) -> Path:
    """Save without a date in the file, so that the same figures give the same bytes."""
    figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Software": None})
    plt.close(figure)
    return path
