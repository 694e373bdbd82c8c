"""The page on programs on servers."""

from __future__ import annotations

import pytest
from tests.support.page import run_page


def test_code_on_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINING_ROLE", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    run_page("fluid_on_servers.md")
