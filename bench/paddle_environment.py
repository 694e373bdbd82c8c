"""A Python 3.7 with PaddlePaddle 1.8.5: $PADDLE18_PYTHON, or created once under build/."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from measure import ROOT

FOLDER = ROOT / "build" / "paddle18"
REQUIREMENTS = ("paddlepaddle==1.8.5", "protobuf<3.21")
HOW_TO_GET_IT = (
    f"python3.7 -m venv {FOLDER.relative_to(ROOT)}; {FOLDER.relative_to(ROOT)}/bin/pip install "
    + " ".join(f"'{one}'" for one in REQUIREMENTS)
)
INSTALL_S = 600.0
ANSWER_S = 60.0


def find_paddle(*, may_install: bool) -> tuple[Path | None, str]:
    """Return the interpreter, or None and what is missing."""
    if given := os.environ.get("PADDLE18_PYTHON"):
        if _can(Path(given), "import paddle.fluid"):
            return Path(given), ""
        return None, f"PADDLE18_PYTHON={given} is not a Python 3.7 with PaddlePaddle 1.8.5"
    python = FOLDER / "bin" / "python"
    if _can(python, "import paddle.fluid"):
        return python, ""
    if not may_install:
        return None, f"skipped: {HOW_TO_GET_IT}"
    maker = next((path for path in _pythons() if _can(path, "import venv")), None)
    if maker is None:
        return None, f"skipped: there is no Python 3.7; {HOW_TO_GET_IT}"
    try:
        for command in (
            [maker, "-m", "venv", "--clear", FOLDER],
            [python, "-m", "pip", "install", "-q", *REQUIREMENTS],
        ):
            subprocess.run(command, check=True, capture_output=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        return None, f"{REQUIREMENTS[0]} cannot be installed: {error}"
    if not _can(python, "import paddle.fluid"):
        return None, f"{REQUIREMENTS[0]} is installed, but cannot be imported"
    return python, ""


def _pythons() -> Iterator[Path]:
    """Search for a Python 3.7; a pyenv shim may only claim to be one."""
    if found := shutil.which("python3.7"):
        yield Path(found)
    yield from sorted(Path.home().glob(".pyenv/versions/3.7*/bin/python"), reverse=True)


def _can(python: Path, statement: str) -> bool:
    check = f"import sys; assert sys.version_info[:2] == (3, 7); {statement}"
    try:
        run = subprocess.run([python, "-c", check], capture_output=True, timeout=ANSWER_S)
    except (OSError, subprocess.SubprocessError):
        return False
    return run.returncode == 0
