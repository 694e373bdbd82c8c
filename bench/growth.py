"""How costs grow: with the rows and width of a table, batch, servers, workers, network delay.

    python bench/growth.py [--by rows,width] [--quick] [--repeats 3] [--json FILE]

Each is one chart of the report. All processes share the machine's cores: more servers or workers
than cores cannot be faster here; the charts show their cost.
"""

from __future__ import annotations

from typing import Any

from growth_fleets import measure_batch, measure_delay, measure_servers, measure_workers
from growth_tables import measure_rows, measure_width
from measure import argument_parser, console, machine, report, write_json

MEASURES = {
    "rows": measure_rows,
    "width": measure_width,
    "batch": measure_batch,
    "servers": measure_servers,
    "workers": measure_workers,
    "delay": measure_delay,
}


def report_figure(figure: dict[str, Any]) -> None:
    """Print one row per series, one column per x."""
    columns = sorted({point[0] for points in figure["series"].values() for point in points})
    rows = []
    for name, points in figure["series"].items():
        medians = {point[0]: point[1] for point in points}
        rows.append([name, *(f"{medians[x]:,.0f}" if x in medians else "" for x in columns)])
    for name, error in figure["errors"].items():
        rows.append([name, error.splitlines()[0][:40], *[""] * (len(columns) - 1)])
    heads = [f"{figure['y_label']} by {figure['x_label']}", *(f"{x:,g}" for x in columns)]
    report(figure["title"], heads, rows)


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--by", default=",".join(MEASURES), help="a comma-separated list")
    options = parser.parse_args()
    console.print(f"[bold]Growth[/bold]. {machine()}")
    figures = {}
    for name in options.by.split(","):
        console.print(f"by {name}", highlight=False)
        for figure in MEASURES[name](options.quick, options.repeats):
            figures[figure["name"]] = figure
            report_figure(figure)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
