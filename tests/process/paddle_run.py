"""Scripts that import `paddle`, run in separate processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import sparsefleet

SOURCE = str(Path(sparsefleet.__file__).parents[1])


def run_as_paddle(
    folder: Path, *words: str, flags: tuple[str, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """`python FLAGS -m sparsefleet.as_paddle WORDS` in `folder`; checked by the caller."""
    return run(folder, *flags, "-m", "sparsefleet.as_paddle", *words, **variables)


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`python WORDS` in `folder`, with sparsefleet within reach."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("PADDLE_")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
