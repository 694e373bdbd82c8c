"""The page of the service in a real browser; its picture is kept in build/screenshots."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import keep_picture, open_browser, wait_for
from tests.support.service_process import ServiceProcess
from tests.unit.serving.export.shop_model import exported_shop

EXAMPLE = {"counts": [0.5, 1], "items": [1, 2, 3], "tags": [4], "shops": [5]}
UNKNOWN = 2**63 + 12345  # more digits than JavaScript's numbers can hold


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(exported_shop()[0]) as process:
        yield process


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with open_browser(tmp_path_factory.mktemp("chromium")) as started:
        yield started


def text_of(browser: Any, place: str) -> str:
    found: str = browser.find_element("css selector", place).text
    return found


def open_page(browser: Any, service: ServiceProcess) -> None:
    browser.get(service.url)
    wait_for(browser, "#model", exported_shop()[1].digest)


def predict(browser: Any, examples: str) -> None:
    area = browser.find_element("css selector", "#examples")
    browser.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'));",
        area,
        examples,
    )
    browser.find_element("css selector", "#predict").click()


def test_examples_that_are_typed_are_scored_and_unknown_ids_shown(
    browser: Any, service: ServiceProcess
) -> None:
    open_page(browser, service)
    assert [
        row.text.split()[0] for row in browser.find_elements("css selector", "#inputs tbody tr")
    ] == [
        "counts",
        "items",
        "tags",
        "shops",
    ]
    other = {**EXAMPLE, "shops": [UNKNOWN]}
    predict(browser, f"{json.dumps(EXAMPLE)}\n{json.dumps(other)}")
    wait_for(browser, "#message", "2 examples, version")
    scores = [
        float(cell.text)
        for cell in browser.find_elements("css selector", "#scores tbody td:nth-child(2)")
    ]
    assert len(scores) == 2
    assert all(0 < score < 1 for score in scores)
    wait_for(browser, "#unknown", str(UNKNOWN))
    keep_picture(browser, "serve_page.png")
    severe = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert not severe


def test_what_is_wrong_is_said_in_words(browser: Any, service: ServiceProcess) -> None:
    open_page(browser, service)
    predict(browser, '{"counts": [1, 2]}')
    wait_for(browser, "#message", "422 inputs_do_not_fit: example 0 lacks items, tags, shops")
    keep_picture(browser, "serve_page_error.png")


def test_file_is_uploaded(browser: Any, service: ServiceProcess, tmp_path: Path) -> None:
    path = tmp_path / "examples.csv"
    path.write_text("counts,items,tags,shops\n0.5 1,1 2 3,4,5\n0.1 0,4 5 6,,\n1 1,7 8 9,1 2,3\n")
    open_page(browser, service)
    browser.find_element("css selector", "#file").send_keys(str(path))
    browser.find_element("css selector", "#predict").click()
    wait_for(browser, "#message", "3 examples, version")


def test_page_of_the_api_lists_the_routes(browser: Any, service: ServiceProcess) -> None:
    browser.get(service.url + "/docs")
    wait_for(browser, "#paths", "/v1/predict")
    keep_picture(browser, "serve_docs.png")
