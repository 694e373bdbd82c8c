"""Shows the contents of the dashboard in a terminal, for use over ssh."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparsefleet.monitor.job_file import find_job
from sparsefleet.monitor.job_watch import JobWatch

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

__all__ = ["run_top", "screen"]

_GOOD = ("running", "done")


def run_top(
    place: str | os.PathLike[str], console: Console, *, interval_s: float = 1.0, once: bool = False
) -> None:
    """Show a job until it ends or Ctrl-C is pressed.

    With `once`, show one screen after two readings, and return.

    Raises ConfigError if there is no watchable job in `place`.
    """
    from rich.live import Live

    watch = JobWatch(find_job(place), interval_s=interval_s)
    watch.look()
    if once:
        time.sleep(interval_s)
        watch.look()
        console.print(screen(watch.view()))
        return
    took_s = 0.0
    with Live(screen(watch.view()), console=console, screen=True, auto_refresh=False) as live:
        while not watch.view()["job"]["ended"]:
            time.sleep(max(interval_s - took_s, 0.1))
            begun = time.monotonic()
            watch.look()
            took_s = time.monotonic() - begun
            live.update(screen(watch.view()), refresh=True)
    console.print(screen(watch.view()))


def screen(view: Mapping[str, Any]) -> RenderableType:
    """Return the screen contents for a view; see `job_view`."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [_head(view)]
    for finding in view["findings"]:
        text = Text(f"! {finding['text']}", style="bold yellow")
        text.append(f"\n  {finding['advice']}", style="yellow not bold")
        parts.append(text)
    bottleneck = view["bottleneck"]
    if bottleneck:
        parts.append(Text(f"Bottleneck: {bottleneck['text']}"))
    parts += [_fleet(view), _tables(view)]
    saved = view["checkpoint"]
    if saved:
        parts.append(
            Text(
                f"Checkpoints: {saved['count']:.0f}, the last at step {saved['step']:.0f}, "
                f"{saved['age_s']:.0f} s ago, took {saved['seconds']:.1f} s"
            )
        )
    return Group(*parts)


def _head(view: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    totals, job, epoch = view["totals"], view["job"], view["epoch"]
    words = [
        f"{_number(totals['examples_per_s'])} examples/s",
        f"loss {_number(totals['loss'])}",
        f"AUC {_number(totals['auc'])}",
        f"pull {_seconds(totals['pull_p50_s'])}",
        f"push {_seconds(totals['push_p50_s'])}",
        f"staleness {_number(totals['staleness'])}",
        f"rows {_number(totals['rows'])}",
    ]
    if epoch:
        words.insert(0, f"epoch {epoch['now']:.0f} of {epoch['of']:.0f}")
    title = Text(f"sparsefleet {job['script']}  ", style="bold")
    title.append(job["ended"] or "running", style="bold red" if job["ended"] else "green")
    title.append("\n" + "   ".join(words), style="not bold")
    return title


def _fleet(view: Mapping[str, Any]) -> Table:
    from rich.text import Text

    table = _table("process", "state", "doing", "rate", "CPU", "memory", "starts", "pid")
    for each in view["processes"]:
        rate, cpu, memory = each.get("rate"), each.get("cpu"), each.get("memory_bytes")
        table.add_row(
            each["name"],
            Text(each["state"], style="green" if each["state"] in _GOOD else "bold red"),
            Text(each["doing"]),
            "-" if rate is None else f"{_number(rate)} {each['rate_unit']}",
            "-" if cpu is None else f"{100 * cpu:.0f}%",
            "-" if memory is None else f"{memory / 2**20:,.0f} MiB",
            str(each["starts"]),
            str(each["pid"] or "-"),
        )
    return table


def _tables(view: Mapping[str, Any]) -> Table:
    table = _table(
        "table",
        "rows",
        "memory",
        "new/s",
        "new ids",
        "distinct",
        "hottest",
        "row norm",
        "gradient",
        "skew",
        "rejected",
    )
    for each in view["tables"]:
        table.add_row(
            each["name"],
            _number(each["rows"]),
            f"{each['bytes'] / 2**20:,.1f} MiB",
            _number(each["created_per_s"]),
            _share(each["new_share"]),
            _share(each.get("unique")),
            _share(each.get("hot")),
            _number(each["row_norm"]),
            _number(each["gradient_norm"]),
            _number(each["skew"]),
            _number(each["rejected"]),
        )
    return table


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        is_text = name in ("process", "state", "doing", "table")
        table.add_column(
            name, justify="left" if is_text else "right", no_wrap=number == 0, style=None
        )
    return table


def _number(value: float | None) -> str:
    """Format a number in a few characters.

    >>> _number(None), _number(12345.6), _number(0.51234), _number(3.0)
    ('-', '12,346', '0.512', '3')
    """
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{1e3 * value:.2f} ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f}%"
