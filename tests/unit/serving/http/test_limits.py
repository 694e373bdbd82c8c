"""Requests over a limit are refused by name, before they cost anything."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from tests.support.served_models import Served, error_of, shop_rows
from tests.unit.serving.http.shop_service import WAIT_S, held, on_shop

ENGINES = ["torch", "onnx"]


def test_too_much_is_refused() -> None:
    async def test(served: Served) -> None:
        assert error_of(await served.predict(shop_rows(11))) == (413, "too_many_examples")
        assert error_of(await served.post(b" " * 3001, "application/json")) == (413, "too_large")

        async def pieces() -> Any:
            for _ in range(40):
                yield b" " * 100

        answer = await served.client.post(
            "/v1/predict", content=pieces(), headers={"content-type": "application/json"}
        )
        assert error_of(answer) == (413, "too_large")
        assert served.service.admission.bytes == served.service.admission.requests == 0

    on_shop(test, max_examples=10, max_request_bytes=3000)


def test_full_queue_is_reported_and_what_is_in_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = held(monkeypatch)

    async def test(served: Served) -> None:
        rows.go.clear()
        tasks = [asyncio.create_task(served.predict(shop_rows())) for _ in range(3)]
        while served.service.admission.requests < 3:
            await asyncio.sleep(0)
        answer = await served.predict(shop_rows())
        assert error_of(answer) == (429, "queue_full")
        assert answer.headers["retry-after"] == "1"
        assert (await served.client.get("/healthz")).status_code == 200
        rows.go.set()
        assert [(await task).status_code for task in tasks] == [200] * 3
        assert served.service.admission.requests == 0
        assert (await served.predict(shop_rows())).status_code == 200

    on_shop(test, max_requests=3, workers=1)


def test_memory_under_way_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held(monkeypatch)
    most = 100_000
    [large] = shop_rows(1)
    large["tags"] = list(range(1000, 2000))  # 1000 * (8 + 3 * 12 + 32) bytes and a little more

    async def test(served: Served) -> None:
        admission = served.service.admission
        rows.go.clear()
        first = asyncio.create_task(served.predict([large]))
        with anyio.fail_after(WAIT_S):
            while admission.requests < 1 or admission.bytes < most // 2:
                await asyncio.sleep(0)
        refused = await served.predict([large])
        assert error_of(refused) == (429, "queue_full")
        assert refused.headers["retry-after"] == "1"
        rows.go.set()
        assert (await first).status_code == 200
        assert admission.bytes == admission.requests == admission.receiving == 0
        never = await served.predict([large, large])
        assert error_of(never) == (413, "too_large")
        assert "--max-bytes-under-way" in never.text

    on_shop(test, max_request_bytes=20_000, max_bytes_under_way=most)


def test_ids_times_width_are_bounded_before_the_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held(monkeypatch)
    [row] = shop_rows(1)
    fine, computed, given = ({**row} for _ in range(3))
    fine["tags"] = [1] * 50
    given["tags"] = [1] * 2000

    async def test(served: Served) -> None:
        assert (await served.predict([fine])).status_code == 200
        rows.go.clear()  # a lookup would not end
        answer = await served.predict([given])
        assert error_of(answer) == (413, "too_many_ids")
        assert "--max-row-bytes" in answer.text
        keys = await served.client.post("/v1/rows", json={"table": "tags", "keys": [1] * 1000})
        assert error_of(keys) == (413, "too_many_ids")
        rows.go.set()
        # The ids of items are computed by the model: 3 * 4 floats an example.
        answer = await served.predict([computed] * 220)
        assert error_of(answer) == (413, "too_many_ids")
        assert (await served.predict([computed] * 100)).status_code == 200

    for engine in ENGINES:
        on_shop(test, max_row_bytes=10_000, engine=engine)


def test_trace_of_examples_with_very_many_ids_is_refused() -> None:
    [row] = shop_rows(1)
    row["tags"] = [1] * 200_000

    async def test(served: Served) -> None:
        assert (await served.predict([row])).status_code == 200
        assert error_of(await served.predict([row], trace=True)) == (413, "too_many_ids")

    on_shop(test)


def test_long_bodies_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsefleet.serving.http import routes

    at_once: list[int] = []
    parsing: list[int] = []
    read_examples = routes.read_examples

    def counted(*arguments: Any) -> Any:
        parsing.append(1)
        at_once.append(len(parsing))
        try:
            return read_examples(*arguments)
        finally:
            parsing.pop()

    monkeypatch.setattr(routes, "read_examples", counted)
    [row] = shop_rows(1)
    row["tags"] = list(range(20_000))

    async def test(served: Served) -> None:
        answers = await asyncio.gather(*(served.predict([row]) for _ in range(8)))
        assert {answer.status_code for answer in answers} == {200}
        assert at_once == [1] * 8

    on_shop(test)


def test_csv_with_very_many_columns_or_lines_is_refused_before_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr("sparsefleet.serving.http.examples.read_csv", read)
    wide = b"\n" + b",".join(b"%d" % number for number in range(1000)) + b"\n" + b"," * 999 + b"\n"
    long = b"counts,items,tags,shops\n" + b"1 1,1 2 3,4,5\n" * 10_001

    async def test(served: Served) -> None:
        answer = await served.post(wide, "text/csv")
        assert error_of(answer) == (422, "inputs_do_not_fit")
        assert "1,000 columns" in answer.text
        assert error_of(await served.post(long, "text/csv")) == (413, "too_many_examples")

    on_shop(test)


def test_body_that_is_never_sent_takes_nobodys_place() -> None:
    async def test(served: Served) -> None:
        async def never() -> Any:
            yield b" " * 10
            await asyncio.Event().wait()

        headers = {"content-type": "application/json", "content-length": "3000"}
        slow = [
            asyncio.create_task(served.client.post("/v1/predict", content=never(), headers=headers))
            for _ in range(20)
        ]
        with anyio.fail_after(WAIT_S):
            while served.service.admission.receiving < 20:
                await asyncio.sleep(0)
        assert (await served.predict(shop_rows())).status_code == 200
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
        assert served.service.admission.receiving == 0

    on_shop(test, max_requests=2, max_request_bytes=3000, max_bytes_under_way=40_000)


def test_answer_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held(monkeypatch)

    async def test(served: Served) -> None:
        rows.go.clear()
        answers = await asyncio.gather(*(served.predict(shop_rows()) for _ in range(3)))
        assert {error_of(answer) for answer in answers} == {(504, "timed_out")}
        assert served.service.admission.requests == 0
        rows.go.set()
        with anyio.fail_after(WAIT_S):
            while (await served.predict(shop_rows())).status_code != 200:
                await asyncio.sleep(0.01)

    on_shop(test, timeout_s=0.2, workers=1)
