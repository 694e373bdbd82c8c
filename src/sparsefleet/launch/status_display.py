"""The terminal display of a running job."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparsefleet.launch.child_process import ChildProcess, ChildState, describe_exit

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from typing_extensions import Self

__all__ = ["JobDisplay", "LiveJobDisplay", "PlainJobDisplay", "make_display"]

_PLAIN_INTERVAL_S = 10.0
_COLOURS = {
    ChildState.RUNNING: "green",
    ChildState.STOPPING: "yellow",
    ChildState.DONE: "blue",
    ChildState.FAILED: "bold red",
    ChildState.STOPPED: "dim",
}


class JobDisplay:
    """Shows a job while it runs; this base class shows only the requested output."""

    def note(self, text: str) -> None:
        """Show an event."""
        del text

    def show_output(self, lines: Sequence[str]) -> None:
        """Show output of a process."""
        for line in lines:
            print(line, flush=True)

    def refresh(self, children: Sequence[ChildProcess]) -> None:
        """Show the state of all processes. This method is called often."""
        del children

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def make_display(*, quiet: bool, show: str = "") -> JobDisplay:
    """Return a live display on a terminal, or a display that prints plain lines elsewhere.

    show: the process whose output is always shown.
    """
    if quiet:
        return JobDisplay()
    return LiveJobDisplay() if sys.stdout.isatty() else PlainJobDisplay(shown=show)


class PlainJobDisplay(JobDisplay):
    """Prints one line per event, and periodically the last line of each process.

    Processes selected by `shown` (one process, or all) are excluded, because their output is
    already printed in full.
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


class LiveJobDisplay(JobDisplay):
    """A live display with one line per process that shows its state and last output."""

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

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def status_table(children: Sequence[ChildProcess]) -> Table:
    """Return a table with one line per process: name, state, last output."""
    from rich.table import Table
    from rich.text import Text

    states = [_state_of(child) for child in children]
    table = Table.grid(padding=(0, 2), expand=True)
    for texts in ([child.name for child in children], states):
        width = max(map(len, texts), default=1)  # fixed, however long the output is
        table.add_column(no_wrap=True, width=width)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for child, state in zip(children, states, strict=True):
        style = _COLOURS[child.state]
        table.add_row(child.name, Text(state, style=style), Text(child.log.last_line()))
    return table


def _state_of(child: ChildProcess) -> str:
    if child.state is ChildState.FAILED and child.exit_code is not None:
        return describe_exit(child.exit_code)
    return child.state.value
