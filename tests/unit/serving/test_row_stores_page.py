"""The page on row stores is correct."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from tests.support.page import run_page
from tests.support.redis_process import RedisProcess

from sparsefleet.serving.row_stores import PushedVersion
from sparsefleet.train import PublishConfig

PAGE = (Path(__file__).parents[3] / "docs" / "row_stores.md").read_text(encoding="utf-8")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with RedisProcess(tmp_path) as redis:
        here = {"127.0.0.1:6379": f"127.0.0.1:{redis.port}"}
        run_page("row_stores.md", replaced=here)["server"].close()


def test_every_setting_and_field_is_described() -> None:
    for field in fields(PublishConfig):
        assert f"`{field.name}`" in PAGE, field.name
    for field in fields(PushedVersion):
        assert field.name in PAGE, field.name
