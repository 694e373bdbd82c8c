"""What a person at the terminal sees of a running job."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from sparsefleet.launch.child_process import ChildProcess, ChildState, describe_exit

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from typing_extensions import Self

__all__ = ["LiveDisplay", "PlainDisplay", "QuietDisplay", "StatusDisplay", "make_display"]

_PLAIN_INTERVAL_S = 10.0
_COLOURS = {
    ChildState.RUNNING: "green",
    ChildState.STOPPING: "yellow",
    ChildState.DONE: "blue",
    ChildState.FAILED: "bold red",
    ChildState.STOPPED: "dim",
}


class StatusDisplay(Protocol):
    """Shows a job; open while it runs."""

    def note(self, text: str) -> None:
        """Something that happened."""

    def show_output(self, lines: Sequence[str]) -> None:
        """What a process printed."""

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        """How things stand. Called often."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def make_display(*, quiet: bool, show: str = "") -> StatusDisplay:
    """Live on a terminal, lines elsewhere. `show`: the process whose output is shown anyway."""
    if quiet:
        return QuietDisplay()
    return LiveDisplay() if sys.stdout.isatty() else PlainDisplay(shown=show)


class _Display:
    def note(self, text: str) -> None:
        del text

    def show_output(self, lines: Sequence[str]) -> None:
        for line in lines:
            print(line, flush=True)

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        del children

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        del kind, error, trace


class QuietDisplay(_Display):
    """Shows nothing but what it is handed of a process's output."""


class PlainDisplay(_Display):
    """One line for each thing that happened, and now and then what each process said last.

    Not of `shown` (a process, or all), whose lines are all shown when they come.
    """

    def __init__(self, interval_s: float = _PLAIN_INTERVAL_S, *, shown: str = "") -> None:
        self._interval_s = interval_s
        self._shown_whole = shown
        self._next = time.monotonic() + interval_s
        self._shown: dict[str, str] = {}

    def note(self, text: str) -> None:
        print(f"[launch] {text}", flush=True)

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._interval_s
        for child in children:
            line = child.log.last_line()
            if self._shown_whole in ("all", child.plan.short_name):
                continue
            if line and self._shown.get(child.name) != line:
                self._shown[child.name] = line
                print(f"[{child.name}] {line}", flush=True)


class LiveDisplay(_Display):
    """One line for each process, in place: its state and what it said last."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live: Live = Live(
            console=self._console, auto_refresh=False, redirect_stderr=sys.stderr.isatty()
        )

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    def show_output(self, lines: Sequence[str]) -> None:
        for line in lines:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        self._live.update(status_table(children), refresh=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()


def status_table(children: Sequence[ChildProcess]) -> Table:
    """A line a process: name, state, last line."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for child in children:
        state = child.state.value
        if child.state is ChildState.FAILED and child.exit_code is not None:
            state = describe_exit(child.exit_code)
        table.add_row(
            child.name, Text(state, style=_COLOURS[child.state]), Text(child.log.last_line())
        )
    return table
