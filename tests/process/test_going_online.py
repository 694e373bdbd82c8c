"""The example that takes a model online, with a real Redis and a real service."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.process.example_run import EXAMPLES, number_after, run_alone


def test_two_days_go_online_and_the_gate_holds(tmp_path: Path) -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: scripts/install_system_packages.sh installs it")
    pytest.importorskip("redis", reason="pip install sparsefleet[redis]")
    pytest.importorskip("uvicorn", reason="pip install sparsefleet[serve]")
    printed = run_alone("online/go_online", "--folder", str(tmp_path), "--rows", "3000")
    assert printed.splitlines().count("PASSED") == 2
    assert "both days are online exactly as trained" in printed
    assert number_after("day 2: AUC", printed) > 0.55
    for day in (1, 2):
        page = (tmp_path / f"day-{day}.html").read_text(encoding="utf-8")
        assert '<p class="verdict passed">Passed.</p>' in page
        assert "http://127.0.0.1:" in page
        assert "redis://127.0.0.1:" in page


def test_example_is_short_and_says_how_to_run_it() -> None:
    text = (EXAMPLES / "online" / "go_online.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 180
    assert "python examples/online/go_online.py" in text
