"""Training progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from types import TracebackType

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from auc import auc

_WINDOW_BATCHES = 50
_PLAIN_INTERVAL_S = 2.0


class ProgressDisplay:
    """Shows examples/s, and loss and AUC over the last batches, scored before they are learnt.

    `with ProgressDisplay(total, quiet=False) as display: display.update(...)`
    """

    def __init__(self, num_examples: int, *, quiet: bool) -> None:
        self._num_examples = num_examples
        self._done = 0
        self._rows = 0
        self._recent: deque[tuple[np.ndarray, np.ndarray, float]] = deque(maxlen=_WINDOW_BATCHES)
        self._begun = self._shown = time.monotonic()
        self._plain = not quiet and not sys.stdout.isatty()
        self._live: Progress | None = None
        if not quiet and not self._plain:
            self._live = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f} %"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[numbers]}"),
                console=Console(),
            )
            self._task = self._live.add_task("training", total=num_examples, numbers="")

    def __enter__(self) -> ProgressDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, clicks: np.ndarray, scores: np.ndarray, loss: float) -> None:
        """One more batch."""
        self._done += len(clicks)
        self._recent.append((clicks, scores, loss))
        now = time.monotonic()
        ended = self._done >= self._num_examples
        if self._live is not None and (now - self._shown >= 0.2 or ended):
            self._live.update(self._task, completed=self._done, numbers=self._numbers(now))
            self._shown = now
        elif self._plain and (now - self._shown >= _PLAIN_INTERVAL_S or ended):
            share = 100 * self._done // self._num_examples
            print(f"training {share:3d} %  {self._numbers(now)}", flush=True)
            self._shown = now

    def set_rows(self, rows: float) -> None:
        """Rows in the table now."""
        self._rows = int(rows)

    def _numbers(self, now: float) -> str:
        clicks, scores, losses = zip(*self._recent, strict=True)
        rate = self._done / max(now - self._begun, 1e-9)
        recent_auc = auc(np.concatenate(clicks), np.concatenate(scores))
        return (
            f"{rate:,.0f} examples/s  loss {np.mean(losses):.4f}  "
            f"AUC {recent_auc:.4f}  {self._rows:,} rows"
        )
