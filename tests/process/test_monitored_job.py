"""A real job as Prometheus, the dashboard in a browser, and `sparsefleet top` show it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.browser import keep_picture, open_browser, wait_for
from tests.support.launch_process import wait_until
from tests.support.monitored_job import MonitoredJob

from sparsefleet.monitor import CATALOGUE
from sparsefleet.monitor.series import metric_of

pytestmark = pytest.mark.job

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredJob]:
    started = MonitoredJob(tmp_path_factory.mktemp("job"))
    yield started
    started.launcher.close()


def test_the_launcher_gathers_the_metrics_of_all_processes(job: MonitoredJob) -> None:
    reading = job.reading()
    names = {metric_of(each.name) for each in reading.samples()}
    assert len(names) >= 40
    assert names <= set(CATALOGUE)
    roles = reading.by("sparsefleet_process_cpu_seconds_total", "role")
    assert set(roles) == {"launcher", "server", "worker"}
    assert set(reading.by("sparsefleet_table_rows", "table")) == {"ads", "clock"}
    assert set(reading.by("sparsefleet_worker_metric", "metric")) >= {"auc", "loss"}
    assert sum(reading.by("sparsefleet_job_process_up", "index").values()) == 4
    buckets = reading.buckets("sparsefleet_server_request_seconds", type="pull", role="server")
    assert buckets[float("inf")] > 0
    assert reading.sum("sparsefleet_log_bytes_total") > 0
    for name in (
        "received",
        "sent",
    ):  # workers on this host say hello over a socket, then use shared memory
        moved = reading.by(f"sparsefleet_server_{name}_bytes_total", "transport")
        assert moved["shared_memory"] > moved["socket"] > 0


def test_the_discovery_file_names_every_process(job: MonitoredJob) -> None:
    path = job.directory / "logs" / "metrics" / "targets.json"
    wait_until(lambda: path.exists() and len(json.loads(path.read_text())) == 5, "all listed")
    groups = json.loads(path.read_text())
    places = [(g["labels"].get("role"), g["labels"].get("index")) for g in groups]
    assert places == [
        ("server", "0"), ("server", "1"), ("worker", "0"), ("worker", "1"), (None, None)
    ]  # fmt: skip
    assert groups[-1]["targets"] == [job.address()]


def test_top_shows_every_process_and_table(job: MonitoredJob) -> None:
    shown = job.top()
    for words in ("examples/s", "server 0", "worker 1", "ads", "clock", "Bottleneck:"):
        assert words in shown


def test_strangers_do_not_see_the_page(job: MonitoredJob) -> None:
    parts = urllib.parse.urlsplit(job.page())
    for query in ("", "?token=wrong"):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"http://{parts.netloc}/job.json{query}", timeout=60)
    assert os.stat(job.directory / "logs" / "metrics" / "dashboard.url").st_mode & 0o77 == 0


def errors_of(browser: Any) -> list[str]:
    return [each["message"] for each in browser.get_log("browser") if each["level"] == "SEVERE"]


def test_the_page_says_that_a_server_was_stopped(
    job: MonitoredJob, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with open_browser(tmp_path / "profile", "1200,1700") as browser:
        browser.get(job.page())
        assert "token" not in browser.current_url
        wait_for(browser, "#state", "all 4 processes healthy")
        wait_for(browser, "#fleet", "examples/s")
        wait_for(browser, "#tables", "clock")
        wait_for(browser, "#bottleneck", "Bottleneck:")
        wait_for(browser, "#checkpoint", "committed")
        wait_for(browser, "#charts", "Examples per second")
        assert job.page().rpartition("=")[2] not in browser.page_source
        keep_picture(browser, "dashboard.png")
        pid = job.pid("server 1")

        def resume() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

        request.addfinalizer(resume)
        os.kill(pid, signal.SIGSTOP)
        wait_for(browser, "#state", "server 1: suspended")
        wait_for(browser, "#findings", "server 1 is suspended")
        wait_for(browser, "#fleet", "waiting for server 1")
        keep_picture(browser, "dashboard_stopped_server.png")
        os.kill(pid, signal.SIGCONT)
        wait_for(browser, "#state", "all 4 processes healthy")
        chart = browser.find_element("css selector", "#charts svg")
        assert chart.get_attribute("role") == "img"
        assert chart.get_attribute("aria-label").startswith("Examples per second")
        assert not errors_of(browser)


def test_the_page_fits_a_phone_in_the_dark(job: MonitoredJob, tmp_path: Path) -> None:
    with open_browser(tmp_path / "profile", "1000,1100") as browser:
        phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
        dark = [{"name": "prefers-color-scheme", "value": "dark"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": dark})
        browser.get(job.page())
        wait_for(browser, "#fleet", "worker 1")
        width = browser.execute_script("return document.documentElement.scrollWidth")
        wide = browser.execute_script(
            "return [...document.querySelectorAll('body *')].filter((e) => !e.closest('.scroll')"
            " && e.getBoundingClientRect().right > 390).map((e) => e.outerHTML.slice(0, 200))"
        )
        assert width <= 390, wide
        colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert colour == "rgb(18, 22, 28)"
        keep_picture(browser, "dashboard_phone.png")
        assert not errors_of(browser)


def test_every_query_of_the_grafana_board_is_answered(job: MonitoredJob, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus: scripts/install_system_packages.sh prometheus installs it")
    board = json.loads((ROOT / "grafana" / "sparsefleet.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(queries) > 50
    targets = job.directory / "logs" / "metrics" / "targets.json"
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: sparsefleet\n"
        f"    file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]\n"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            program, "--config.file=prometheus.yml", "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn",
        ],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def ask(query: str) -> list[Any]:
        text = urllib.parse.urlencode({"query": query})
        url = f"http://127.0.0.1:{port}/api/v1/query?{text}"
        with urllib.request.urlopen(url, timeout=60) as response:
            answer = json.load(response)
        assert answer["status"] == "success", query
        return list(answer["data"]["result"])

    def is_scraping() -> bool:
        try:
            return len(ask("up == 1")) == 5 and bool(
                ask("rate(sparsefleet_worker_steps_total[10s]) > 0")
            )
        except OSError:
            return False

    try:
        wait_until(is_scraping, "Prometheus scrapes all processes")
        # Nothing is wrong, so nothing is diagnosed; the job syncs no log and evaluates nothing.
        empty = ("job_diagnosis", "log_sync_seconds", "validation_metric")
        for query in queries:
            filled = query.replace("$__rate_interval", "30s").replace("$job", ".*")
            if any(name in query for name in empty):
                ask(filled)
            else:  # a rate needs two readings, and a checkpoint some seconds
                wait_until(lambda filled=filled: bool(ask(filled)), f"answered: {query}")
    finally:
        process.terminate()
        process.wait(60)


def test_the_job_ends_and_says_so(job: MonitoredJob) -> None:
    assert job.stop() == 0, job.launcher.output()
    ended = json.loads((job.directory / "logs" / "metrics" / "job.json").read_text())
    assert ended["ended"] == "the job has ended"
    assert not (job.directory / "logs" / "metrics" / "dashboard.url").exists()
    assert "the job has ended" in job.top()
