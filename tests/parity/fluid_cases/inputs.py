"""Inputs that many cases share."""

from __future__ import annotations

import numpy as np

from .case import floats, ints

PLAIN = {"x": floats(4, 3)}
POSITIVE = {"x": floats(4, 3, low=0.1, high=2.0)}
PAIR = {"x": floats(4, 3), "y": floats(4, 3, low=0.5, high=1.5, seed=3)}
CUBE = {"x": floats(2, 3, 4)}
CHANCES = {
    "x": np.array([[0.2, 0.3, 0.5], [0.1, 0.1, 0.8], [0.6, 0.2, 0.2], [0.3, 0.3, 0.4]], "float32"),
    "y": ints(4, 1, high=3),
}
ROWS = {"x": floats(6, 3)}
LENGTHS = {"x": [[2, 1, 3]]}
WIDE = {"x": floats(4, 3) * 3}
PICTURES = {"x": floats(2, 4, 5, 6)}
VOLUMES = {"x": floats(2, 2, 4, 5, 4)}
