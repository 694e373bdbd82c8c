"""`paddle.utils.plot`, which draws curves while a notebook or script trains."""

from __future__ import annotations

import importlib
import os
from typing import Any

__all__ = ["PlotData", "Ploter"]


class PlotData:
    """The points of one curve."""

    def __init__(self) -> None:
        self.reset()

    def append(self, step: float, value: float) -> None:
        """Add a point."""
        self.step.append(step)
        self.value.append(value)

    def reset(self) -> None:
        """Remove all points."""
        self.step: list[float] = []
        self.value: list[float] = []


class Ploter:
    """Curves with these titles, drawn by Matplotlib; needs `pip install matplotlib`.

    If the environment variable DISABLE_PLOT is True, nothing is drawn and Matplotlib is not needed.
    """

    def __init__(self, *args: str) -> None:
        self._curves = {title: PlotData() for title in args}
        self._is_off = os.environ.get("DISABLE_PLOT") == "True"
        if not self._is_off:
            import matplotlib.pyplot as plt

            self.plt: Any = plt

    def append(self, title: str, step: float, value: float) -> None:
        """Add a point to the curve with this title."""
        if title not in self._curves:
            raise AssertionError(f"no curve {title!r}; the curves are {sorted(self._curves)}")
        self._curves[title].append(step, value)

    def plot(self, path: str | None = None) -> None:
        """Draw all curves to a file, or in place of the notebook cell's last output."""
        if self._is_off:
            return
        drawn = {title: curve for title, curve in self._curves.items() if curve.step}
        for curve in drawn.values():
            self.plt.plot(curve.step, curve.value)
        self.plt.legend(list(drawn), loc="upper left")
        if path is not None:
            self.plt.savefig(path)
        else:
            display: Any = importlib.import_module("IPython.display")
            display.clear_output(wait=True)
            display.display(self.plt.gcf())
        self.plt.gcf().clear()

    def reset(self) -> None:
        """Remove all points."""
        for curve in self._curves.values():
            curve.reset()
