"""A headless Chromium for tests of web pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
WAIT_S = 120  # for a loaded machine


@contextmanager
def open_browser(profile: Path, size: str = "1000,1100", *flags: str) -> Iterator[Any]:
    """Yield a WebDriver, closed at the end of the block; skip the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("there is no chromium: scripts/install_system_packages.sh installs it")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--window-size={size}",
        f"--user-data-dir={profile}",
        *flags,
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_page_load_timeout(WAIT_S)
    try:
        yield started
    finally:
        started.quit()


def wait_for(browser: Any, place: str, text: str) -> None:
    """Wait until an element contains a text."""
    from selenium.webdriver.support.ui import WebDriverWait

    def is_there(_: Any) -> bool:
        return text in browser.find_element("css selector", place).text

    WebDriverWait(browser, WAIT_S).until(is_there, f"'{text}' in {place}")


def keep_picture(browser: Any, name: str) -> None:
    """Save a screenshot in build/screenshots."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    assert browser.save_screenshot(str(SCREENSHOTS / name))
