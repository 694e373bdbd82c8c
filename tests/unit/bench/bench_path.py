"""Scripts of bench/ import each other by bare names, as they do when they are run."""

from __future__ import annotations

import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench"

if str(BENCH) not in sys.path:
    sys.path.append(str(BENCH))
