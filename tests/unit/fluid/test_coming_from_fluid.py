"""The page for users coming from Fluid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "coming_from_fluid.md"


def test_code_on_the_page_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {})


def test_the_table_says_what_is_there() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "fluid_coverage.py"), "--check"]
    assert subprocess.run(command, check=False, timeout=120).returncode == 0, (
        "run python scripts/fluid_coverage.py"
    )
