"""Take the screenshots of the dashboard that the documentation shows, from a job that runs.

`make pictures` starts a job of two servers and two workers, opens its page in a headless
Chromium (scripts/install_system_packages.sh chromium chromium-driver), and writes
docs/images/dashboard_*.png.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.browser import open_browser, wait_for  # noqa: E402
from tests.support.monitored_job import MonitoredJob  # noqa: E402

IMAGES = ROOT / "docs" / "images"
COLORS = 128  # enough for a page, and a quarter of the size
CURVES_S = 30.0  # for curves that show something
PAGES = {
    "dashboard_light": (1100, 1250, "light"),
    "dashboard_dark": (1100, 1250, "dark"),
    "dashboard_phone": (390, 844, "light"),
}
"""Width, height and colour scheme."""


def take(browser: Any, name: str, address: str) -> None:
    """Write one picture."""
    from io import BytesIO

    from PIL import Image

    width, height, scheme = PAGES[name]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(address)
    for place, words in (("#fleet", "worker 1"), ("#tables", "clock"), ("#charts", "per second")):
        wait_for(browser, place, words)
    picture = Image.open(BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLORS).save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png: {(IMAGES / f'{name}.png').stat().st_size:,} bytes", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sparsefleet-screenshots-") as folder:
        job = MonitoredJob(Path(folder), "slow-worker")
        try:
            begun = time.monotonic()
            while time.monotonic() < begun + CURVES_S / 2:
                time.sleep(1)
            (Path(folder) / "fault").touch()  # so that a warning is visible
            while time.monotonic() < begun + CURVES_S:
                time.sleep(1)
            with open_browser(Path(folder) / "profile", "1100,1250") as browser:
                for name in PAGES:
                    take(browser, name, job.page())
        finally:
            job.stop()
            job.launcher.close()


if __name__ == "__main__":
    main()
