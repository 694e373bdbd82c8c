from __future__ import annotations

from tests.support.page import run_page


def test_code_on_the_page_runs() -> None:
    run_page("metrics.md")
