"""What bench/scale.py found, as charts and as tables in docs/scaling.md."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measure import ROOT

IMAGES = ROOT / "docs" / "images"
DOCUMENT = ROOT / "docs" / "scaling.md"
BEGIN, END = "<!-- begin: bench/scale.py -->", "<!-- end: bench/scale.py -->"
CLOSE = 0.15
NOISY = 0.3
"""With more cores used by others, a measured rate says nothing about the model."""
SHOWN_NETWORK = 25


def summarize(errors: Sequence[float]) -> str:
    """Say how well the model agrees."""
    close = sum(abs(error) <= CLOSE for error in errors)
    median = statistics.median(map(abs, errors))
    return (
        f"{close} of {len(errors)} fleets within {CLOSE:.0%}, median error {median:.0%}, worst "
        f"{max(errors, key=abs):+.0%}"
    )


def draw_predictions(predicted: Mapping[str, Any], networks: Sequence[int]) -> None:
    """Draw the rate per worker, relative to one worker, by the size of the fleet."""
    from matplotlib import pyplot as plt

    from charts import COLOURS, _plain, _save

    for name, of_task in predicted.items():
        figure, every_axes = plt.subplots(
            1, len(networks), figsize=(11, 3.8), sharey=True, layout="constrained"
        )
        modes = list(dict.fromkeys(one.split()[0] for one in of_task["series"]))
        top = 110.0  # sharing a step's requests among servers can gain more than is lost
        for axes, network in zip(every_axes, networks, strict=True):
            for mode, colour in zip(modes, COLOURS, strict=False):
                points = of_task["series"][f"{mode} {network}"]
                alone = points[0][2]
                xs = [point[0] for point in points]
                ys = [100 * point[2] / point[0] / alone for point in points]
                top = max(top, 1.05 * max(ys))
                axes.plot(xs, ys, marker="o", ms=4, label=mode, color=colour)
            axes.set_xscale("log")
            axes.set_xticks(xs, [f"{x:,}" for x in xs], fontsize=8)
            axes.minorticks_off()
            axes.set_title(f"{network} Gbit/s", fontsize=10)
            axes.set_xlabel("workers; a server for ten of them")
            _plain(axes)
        every_axes[0].set_ylim(0, top)  # of all, since they share it
        every_axes[0].set_ylabel("rate per worker, % of one worker's")
        every_axes[0].legend(frameon=False, fontsize=8, loc="lower left")
        figure.suptitle(f"{name}: predicted by the model", fontsize=11)
        IMAGES.mkdir(parents=True, exist_ok=True)
        _save(figure, IMAGES / f"scaling_{name.lower().replace('-', '_')}.png")


def write_document(found: Mapping[str, Any]) -> None:
    """Replace the part of docs/scaling.md between the two marks."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    lines = [BEGIN, "", f"Machine: {found['machine']}.", ""]
    for task, predicted in found["predicted"].items():
        of_task = found["tasks"].get(task, {})
        lines += [*_compared(task, of_task.get("compared", {})), *_predicted(task, predicted)]
    DOCUMENT.write_text(f"{before}{chr(10).join(lines)}{chr(10)}{END}{after}", encoding="utf-8")


def _compared(task: str, compared: Mapping[str, Any]) -> Iterator[str]:
    judged = {name: one for name, one in compared.items() if not name.endswith(" 1x1")}
    yield f"### {task}: the model compared with measurements"
    yield ""
    if not judged:
        yield "No fleets have been measured on a quiet machine yet: `python bench/scale.py`."
        yield ""
        return
    quiet = [one["error"] for one in judged.values() if one["others"] <= NOISY]
    if quiet:
        yield f"* rate: {summarize(quiet)}."
    if len(quiet) < len(judged):
        yield (
            f"* rate: {len(judged) - len(quiet)} of {len(judged)} fleets are not compared, because "
            f"other processes used more than {NOISY:g} cores while they were measured."
        )
    if judged:
        yield f"* processor time: {summarize([one['cpu_error'] for one in judged.values()])}."
    yield ""
    yield "| mode | workers x servers: error of the rate, error of processor time |"
    yield "|---|---|"
    for mode in dict.fromkeys(name.split()[0] for name in judged):
        cells = [
            f"{name.split()[1]}: "
            + (f"{one['error']:+.0%}" if one["others"] <= NOISY else "-")
            + f", {one['cpu_error']:+.0%}"
            for name, one in judged.items()
            if name.split()[0] == mode
        ]
        for begin in range(0, len(cells), 5):
            yield f"| {mode if not begin else ''} | {'; '.join(cells[begin : begin + 5])} |"
    yield ""


def _predicted(task: str, predicted: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {task}: predictions"
    yield ""
    yield f"![{task}](images/scaling_{task.lower().replace('-', '_')}.png)"
    yield ""
    yield f"Total examples per second at {SHOWN_NETWORK} Gbit/s:"
    yield ""
    shown = {
        name.split()[0]: points
        for name, points in predicted["series"].items()
        if int(name.split()[1]) == SHOWN_NETWORK
    }
    sizes = [f"{point[0]}x{point[1]}" for point in next(iter(shown.values()))]
    yield f"| mode | {' | '.join(sizes)} |"
    yield f"|---|{'---|' * len(sizes)}"
    for mode, points in shown.items():
        yield f"| {mode} | {' | '.join(_short(point[2]) for point in points)} |"
    yield ""
    if not predicted["nodes"]:
        return
    yield "Rate per node retained from 4 to 32 nodes, each with 8 workers and a server:"
    yield ""
    networks = list(next(iter(predicted["nodes"].values())))
    yield f"| mode | {' | '.join(f'{network} Gbit/s' for network in networks)} |"
    yield f"|---|{'---|' * len(networks)}"
    for mode, kept in predicted["nodes"].items():
        yield f"| {mode} | {' | '.join(f'{value:.0%}' for value in kept.values())} |"
    yield ""


def _short(number: float) -> str:
    return f"{number / 1e6:.2f}M" if number >= 1e6 else f"{number / 1e3:.0f}k"
