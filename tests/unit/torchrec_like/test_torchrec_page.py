from __future__ import annotations

from tests.support.page import run_page


def test_code_of_the_page_runs() -> None:
    run_page("coming_from_torchrec.md")
