"""Versions switch between two requests, never within one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.served_models import (
    Served,
    error_of,
    replace_telling,
    score_of,
    serving,
    telling,
)

from sparsefleet.errors import CorruptFileError

WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsefleet.serving.http.models._FOLLOW_S", 0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    telling(tmp_path / "one", 1)
    telling(tmp_path / "two", 2)
    choose(tmp_path, "one")
    return tmp_path


def choose(folder: Path, name: str) -> None:
    (folder / "active.json").write_text(json.dumps({"active": name, "previous": None}))


def run(folder: Path, test: Callable[[Served], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with serving(folder, engine="torch", **settings) as served:
            await test(served)

    asyncio.run(main())


async def score(served: Served, **query: Any) -> float:
    answer = await served.predict([{"ad": 5}], **query)
    assert answer.status_code == 200, answer.text
    found: float = answer.json()["predictions"]["output"][0]
    return found


async def until_score(served: Served, wanted: float) -> None:
    with anyio.fail_after(WAIT_S):
        while await score(served) != wanted:
            await asyncio.sleep(0.01)


async def switch(served: Served, version: str) -> Any:
    return await served.client.post("/v1/versions/active", json={"version": version})


async def roll_back(served: Served) -> Any:
    return await served.client.post("/v1/versions/rollback")


def test_version_is_switched_and_rolled_back(folder: Path) -> None:
    async def test(served: Served) -> None:
        assert await score(served) == score_of(1)
        answer = (await switch(served, "two")).json()
        assert (answer["active"]["name"], answer["previous"]["name"]) == ("two", "one")
        assert await score(served) == score_of(2)
        assert await score(served, version="one") == score_of(1)
        assert json.loads((folder / "active.json").read_text()) == {
            "active": "two",
            "previous": "one",
        }
        assert (await roll_back(served)).json()["active"]["name"] == "one"
        assert await score(served) == score_of(1)
        assert (await roll_back(served)).json()["active"]["name"] == "two"

    run(folder, test)


def test_choice_and_the_version_before_outlive_a_restart(folder: Path) -> None:
    async def first(served: Served) -> None:
        await switch(served, "two")

    async def second(served: Served) -> None:
        assert await score(served) == score_of(2)
        assert (await roll_back(served)).json()["active"]["name"] == "one"
        assert await score(served) == score_of(1)

    run(folder, first)
    run(folder, second)


def test_without_a_choice_the_newest_is_served(folder: Path) -> None:
    (folder / "active.json").unlink()
    newest = json.loads((folder / "two" / "manifest.json").read_text())
    newest["created"] = "2999-01-01T00:00:00+00:00"
    (folder / "two" / "manifest.json").write_text(json.dumps(newest))

    async def test(served: Served) -> None:
        assert await score(served) == score_of(2)
        assert error_of(await roll_back(served)) == (404, "unknown_version")

    run(folder, test)


def test_services_that_share_a_folder_follow_each_other(folder: Path) -> None:
    async def test(served: Served) -> None:
        async with serving(folder, engine="torch") as other:
            await switch(served, "two")
            await until_score(other, score_of(2))
            await roll_back(other)
            await until_score(served, score_of(1))

    run(folder, test)


def test_export_written_over_is_picked_up_and_can_be_left_again(tmp_path: Path) -> None:
    directory = telling(tmp_path / "export", 1)

    async def test(served: Served) -> None:
        replace_telling(directory, 2)
        await until_score(served, score_of(2))
        await roll_back(served)
        assert await score(served) == score_of(1)
        for _ in range(5):
            await asyncio.sleep(0.02)
            assert await score(served) == score_of(1)  # the directory has nothing new
        replace_telling(directory, 3)
        await until_score(served, score_of(3))

    run(directory, test)


def test_no_request_is_dropped_or_mixed_while_versions_change(folder: Path) -> None:
    telling(folder / "three", 3)
    allowed = {score_of(number) for number in (1, 2, 3)}

    async def test(served: Served) -> None:
        versions = {}
        for item in (await served.client.get("/v1/versions")).json()["versions"]:
            number = {"one": 1, "two": 2, "three": 3}[item["name"]]
            versions[item["version"]] = score_of(number)
        ended = asyncio.Event()
        count = 0

        async def ask() -> None:
            nonlocal count
            while not ended.is_set():
                answer = await served.predict([{"ad": 5}, {"ad": 6}])
                assert answer.status_code == 200, answer.text
                found = answer.json()
                scores = set(found["predictions"]["output"])
                assert scores == {versions[found["version"]]} <= allowed
                count += 1

        clients = [asyncio.create_task(ask()) for _ in range(8)]
        for name in ("two", "three", "one", "two", "three"):
            before = count
            assert (await switch(served, name)).status_code == 200
            while count < before + 20 and not any(client.done() for client in clients):
                await asyncio.sleep(0)
        ended.set()
        await asyncio.gather(*clients)

    run(folder, test)


def test_version_left_behind_is_closed_after_its_last_request(folder: Path) -> None:
    telling(folder / "three", 3)

    async def test(served: Served) -> None:
        first = served.service.models.active
        assert first is not None
        with served.service.models.lease():
            await switch(served, "two")
            await switch(served, "three")
            assert first.batcher.is_alive
        with anyio.fail_after(WAIT_S):
            while first.batcher.is_alive:
                await asyncio.sleep(0.01)
        assert await score(served) == score_of(3)
        assert await score(served, version="two") == score_of(2)
        assert error_of(await served.predict([], version="one")) == (404, "unknown_version")

    run(folder, test)


def test_version_that_is_not_fit_is_refused_and_the_old_one_stays(folder: Path) -> None:
    damaged = folder / "two"
    rows = next(damaged.glob("rows-*"))
    rows.write_bytes(rows.read_bytes()[:-1])
    shutil.copytree(folder / "one", folder / "odd")
    (folder / "odd" / "manifest.json").write_text("{")

    async def test(served: Served) -> None:
        assert error_of(await switch(served, "two")) == (409, "cannot_be_served")
        assert error_of(await switch(served, "nine")) == (404, "unknown_version")
        assert error_of(await switch(served, "odd")) == (404, "unknown_version")
        assert error_of(await served.client.post("/v1/versions/active", json={})) == (
            422,
            "inputs_do_not_fit",
        )
        choose(folder, "two")
        with anyio.fail_after(WAIT_S):
            while served.service.models.failure is None:
                await asyncio.sleep(0.01)
        listed = (await served.client.get("/v1/versions")).json()
        assert "bytes, expected" in listed["failure"]
        assert "sparsefleet_choice_failed 1.0" in (await served.client.get("/metrics")).text
        assert await score(served) == score_of(1)
        telling(folder / "two", 2)
        await until_score(served, score_of(2))
        assert served.service.models.failure is None

    run(folder, test)


def test_note_that_cannot_be_read_is_reported(folder: Path) -> None:
    (folder / "active.json").write_text("[]")

    async def test(served: Served) -> None:
        raise AssertionError

    with pytest.raises(CorruptFileError, match="does not say which version is active"):
        run(folder, test)


def test_choice_that_cannot_be_noted_changes_nothing(folder: Path) -> None:
    async def test(served: Served) -> None:
        (folder / "active.json").unlink()
        (folder / "active.json").mkdir()
        answer = await switch(served, "two")
        assert error_of(answer) == (409, "cannot_be_served")
        assert "the version was not switched" in answer.text
        assert await score(served) == score_of(1)
        assert [model.name for model in served.service.models.loaded()] == ["one"]

    run(folder, test, follow=False)


def test_following_outlives_a_failure_of_any_kind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(served: Served) -> None:
        def fail(_: object) -> Any:
            raise RuntimeError("no such operator")

        with monkeypatch.context() as patched:
            patched.setattr(served.service.models, "_open_version", fail)
            choose(folder, "two")
            with anyio.fail_after(WAIT_S):
                while served.service.models.failure is None:
                    await asyncio.sleep(0.01)
            assert "no such operator" in str(served.service.models.failure)
        await until_score(served, score_of(2))

    run(folder, test)


def test_choice_taken_back_elsewhere_before_it_was_looked_at_is_followed(folder: Path) -> None:
    async def test(served: Served) -> None:
        await switch(served, "two")
        choose(folder, "one")  # as another service does, or a person
        await served.service.models._follow_once()
        assert await score(served) == score_of(1)

    run(folder, test, follow=False)
