"""The pages about half precision and about fast input."""

from __future__ import annotations

import pytest
from tests.support.page import run_page


@pytest.mark.parametrize("page", ["fluid_amp.md", "fast_input.md"])
def test_code_on_the_page_runs(page: str) -> None:
    run_page(page)
