"""The sections of the report: the figures of each part as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctr_names import PRODUCTS
from markdown_page import first_line, spread, table
from memory_table import COLUMNS, memory_rows
from side_medians import BATCHES

Figures = Mapping[str, Any]


def ctr_section(figures: Figures) -> list[str]:
    """One group: rates and CPU times by batch size, then start-up time and memory."""
    [sides] = [value for key, value in figures.items() if key != "machine"]
    blocks = [_ctr_table(sides, batch) for batch in BATCHES]
    return [*blocks, table(COLUMNS, memory_rows(sides)), *_errors(sides)]


def _ctr_table(sides: Figures, batch: int) -> str:
    taken = {name: one["sections"].get(str(batch), []) for name, one in sides.items()}
    medians = {
        name: statistics.median(section["examples_per_s"] for section in sections)
        for name, sections in taken.items()
        if sections
    }
    floor = max((m for name, m in medians.items() if name.startswith(PRODUCTS)), default=None)
    rows = []
    for name, sections in taken.items():
        if not sections:
            rows.append([name, first_line(sides[name]["error"] or "not measured"), "", "", ""])
            continue
        rates, cpu_us, of_servers = (
            [section[what] for section in sections]
            for what in ("examples_per_s", "cpu_us_per_example", "server_cpu_us_per_example")
        )
        share = f"{medians[name] / floor:.0%}" if floor else ""
        of_servers_text = f"{statistics.median(of_servers):.1f}" if any(of_servers) else ""
        rows.append([name, spread(rates), spread(cpu_us, 1), of_servers_text, share])
    columns = [f"batch {batch}", "examples/s", "CPU us/example", "of it servers", "of floor"]
    return table(columns, rows)


def _errors(sides: Figures) -> list[str]:
    """The full errors of sides that failed."""
    failed = {name: one["error"] for name, one in sides.items() if one.get("error")}
    return [f"{name}:\n\n```\n{error.strip()}\n```" for name, error in failed.items()]


def quality_section(figures: Figures) -> list[str]:
    """A table for each kind of data."""
    if "sides" in figures:  # a record of generated logs only
        return _quality_table(figures, "generated logs")
    kinds = {"generated": "generated logs", "books": "explicit ratings of Book-Crossing"}
    blocks = []
    for name, title in kinds.items():
        if "missing" in figures.get(name, {}):
            blocks.append(f"No {title}: {first_line(figures[name]['missing'])}")
        elif name in figures:
            blocks += _quality_table(figures[name], title)
    return blocks


def _quality_table(figures: Figures, title: str) -> list[str]:
    rows = []
    for name, one in figures["sides"].items():
        if "auc" not in one:
            rows.append([name, first_line(one["error"]), "", ""])
        elif "difference" not in one:  # a record of a single log
            rows.append([name, f"{one['auc']:.4f}", "", ""])
        else:
            spread_text = f"{one['difference']:+.4f} ± {one['standard_error']:.4f}"
            rows.append([name, f"{one['auc']:.4f}", f"{one['deviation']:.4f}", spread_text])
    if "best" in figures:
        rows.append(["best possible", f"{figures['best']:.4f}", "", ""])
    # In older records, each worker took a whole batch.
    halved = " (of half that per worker where workers are averaged)" if "row_lr" in figures else ""
    about = (
        f"{title.capitalize()}, {figures.get('seeds', 1)} seeds: {figures.get('epochs', 1)} x "
        f"{figures['examples']:,} examples, batches of {figures['batch']}{halved}, SGD with "
        f"rate {figures['lr']:g} for layers and "
        f"{figures.get('row_lr', figures['lr']):g} for rows; held-out examples. Differences are "
        "means over the seeds, with their standard errors."
    )
    columns = [title, "AUC", "deviation", "difference from local 1"]
    return [about, table(columns, rows), *_errors(figures["sides"])]


def growth_section(figures: Figures) -> list[str]:
    blocks = []
    for figure in figures.values():
        if not isinstance(figure, dict):
            continue
        xs = sorted({point[0] for points in figure["series"].values() for point in points})
        rows = []
        for name, points in figure["series"].items():
            medians = {point[0]: point[1] for point in points}
            rows.append([name, *(f"{medians[x]:,.0f}" if x in medians else "" for x in xs)])
        columns = [f"{figure['y_label']} by {figure['x_label']}", *(f"{x:,g}" for x in xs)]
        blocks += [f"{figure['title']}: {figure['about']}.", table(columns, rows)]
        blocks += [f"{name}: {first_line(error)}" for name, error in figure["errors"].items()]
    return blocks


def tables_section(figures: Figures) -> list[str]:
    kinds = {name: one for name, one in figures.items() if isinstance(one, dict)}
    rows = []
    for name, of_kind in kinds.items():
        by_batch = of_kind["ns_per_row"]
        if "batch" in figures:  # an older record, of one size
            by_batch = {figures["batch"]: by_batch}
        for batch, taken in by_batch.items():
            times = [f"{one[0]:.0f}" for one in taken.values()]
            ratios = [f"{of_kind[of]:.3f}" for of in ("memory_ratio", "resident_ratio")]
            rows.append([name, f"{int(batch):,}", *times, *ratios])
            sides = list(taken)
    about = (
        f"{figures['rows']:,} rows x {figures['dim']}; ns per row and thread, by optimizer and "
        "batch; memory over key, values and state, as counted and as the system sees it."
    )
    columns = ["optimizer", "batch", *(f"{side}t" for side in sides), "memory", "resident"]
    return [about, table(columns, rows)]


def transport_section(figures: Figures) -> list[str]:
    sizes = [size for size, taken in figures.items() if isinstance(taken, dict)]
    names = list(figures[sizes[0]])
    rows = [
        [name, *(spread([1e6 * seconds for seconds in figures[size][name]]) for size in sizes)]
        for name in sorted(names)
    ]
    columns = ["microseconds a call", *(f"{int(size):,} rows" for size in sizes)]
    return [table(columns, rows)]


def reader_section(figures: Figures) -> list[str]:
    blocks = []
    for part, what in (("multi_slot", "MultiSlot"), ("criteo", "Criteo"), ("parquet", "Parquet")):
        blocks.append(_passes(what, "record", figures[part]))
    blocks.append(_passes("training, 1 thread trains, 1 reads", "example", figures["training"]))
    memory = ", ".join(f"{name} {ratio:.2f}" for name, ratio in figures["memory"].items())
    return [*blocks, f"Records in memory, over the bytes of their ids and floats: {memory}."]


def _passes(title: str, unit: str, sides: Mapping[str, Sequence[Sequence[float]]]) -> str:
    rows = [
        [name, spread([one[0] for one in passes]), spread([one[1] for one in passes], 2)]
        for name, passes in sides.items()
    ]
    return table([title, f"{unit}s/s", f"CPU us/{unit}"], rows)


def checkpoint_section(figures: Figures) -> list[str]:
    rows = [[name, f"{value:,.1f}"] for name, value in figures.items() if name != "machine"]
    return [table(["", "median"], rows)]


def skip_gram_section(figures: Figures) -> list[str]:
    columns = ["", "words/s", "range", "over gensim", "WordSim-353", "SimLex-999", "analogies"]
    about = f"The estimator `embed.SkipGram` trains {figures['ratio']:.2f}x as fast as gensim."
    return [table(columns, figures["rows"]), about]


def doors_section(figures: Figures) -> list[str]:
    blocks = []
    measured = [name for name in figures if name not in ("examples", "machine")]
    for name in measured:  # "1000" in one process, "sync 1000" on servers
        rows = []
        for side, passes in figures[name].items():
            rates = [figures["examples"] / seconds for seconds, _ in passes]
            cpu_us = [1e6 * cpu_s / figures["examples"] for _, cpu_s in passes]
            rows.append([side, spread(rates), spread(cpu_us, 1)])
        mode, _, batch = name.rpartition(" ")
        title = f"{mode or 'local'}, batch {batch}"
        blocks.append(table([title, "examples/s", "CPU us/example"], rows))
    return blocks


def serving_section(figures: Figures) -> list[str]:
    rows = [
        [
            name,
            f"{one['p50_ms']:.2f}",
            f"{one['p99_ms']:.2f}",
            f"{one['requests'] / one['seconds']:,.0f}",
            str(one["errors"]),
        ]
        for name, one in figures["serving"].items()
    ]
    return [table(["", "p50 ms", "p99 ms", "requests/s", "errors"], rows)]


def freshness_section(figures: Figures) -> list[str]:
    return [
        f"{figures['rows']:,} rows, a training at {figures['examples_per_s']:,.0f} examples/s that "
        f"publishes every second: active in another process after {figures['median_s']:.2f} s "
        f"(median), {figures['largest_s']:.2f} s (largest); the first update, which compares all "
        f"rows with the export, after {figures['first_s']:.2f} s."
    ]


def sides_section(figures: Figures) -> list[str]:
    """Scripts that report `sides`, optionally with `tables` and `notes`."""
    blocks = []
    sides = figures.get("sides", {})
    if sides:
        rows = []
        for name, one in sides.items():
            if one.get("error"):
                rows.append([name, first_line(one["error"]), ""])
            else:
                cpu_us = spread(one["cpu_us"], 2) if one.get("cpu_us") else ""
                rows.append([name, spread(one["rate"]), cpu_us])
        unit = next((one["unit"] for one in sides.values() if one.get("unit")), "a second")
        blocks.append(table(["", unit, "CPU us each"], rows))
    for one in figures.get("tables", ()):
        blocks.append(table([one["title"], *one["columns"][1:]], one["rows"]))
    return [*blocks, *figures.get("notes", ())]


SECTIONS: dict[str, tuple[str, Callable[[Figures], list[str]]]] = {
    "ctr-local": ("CTR-DNN in one process", ctr_section),
    "ctr-rounds": ("CTR-DNN on servers: sync, half_async, hybrid", ctr_section),
    "ctr-background": ("CTR-DNN on servers: async, geo", ctr_section),
    "ctr-files": ("CTR-DNN from MultiSlot files, through a Dataset", ctr_section),
    "quality": ("CTR-DNN: AUC of each mode", quality_section),
    "word2vec": ("word2vec", sides_section),
    "skip-gram": ("Skip-gram as an estimator, beside gensim", skip_gram_section),
    "growth-rows": ("Growth: rows", growth_section),
    "growth-width": ("Growth: width", growth_section),
    "growth-batch": ("Growth: batch", growth_section),
    "growth-servers": ("Growth: servers", growth_section),
    "growth-workers": ("Growth: workers", growth_section),
    "growth-delay": ("Growth: delay of the network", growth_section),
    "tables": ("Tables", tables_section),
    "rows": ("Tables: rows in fewer bits", sides_section),
    "transport": ("Transport", transport_section),
    "reader": ("Reading", reader_section),
    "checkpoint": ("Checkpoints", checkpoint_section),
    "collective": ("Collective training", sides_section),
    "doors": ("Both APIs", doors_section),
    "serving": ("Serving", serving_section),
    "freshness": ("Freshness", freshness_section),
}
"""Title and function of a section, by part, in the order of the page."""
