from __future__ import annotations

import pytest
from tests.support.launch_process import wait_until
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.launch.restarts import LostWorkers

ENVIRON = {"SPARSEFLEET_JOB_KEY": JOB_KEY.decode()}


def test_a_worker_that_no_server_awaits_is_back() -> None:
    with NativeServers(2) as servers:
        reports = LostWorkers(servers.endpoints, "auto", ENVIRON)
        assert not reports.is_back(1)
        reports.expect(1)
        wait_until(lambda: reports.is_back(1), "both servers have answered")
        reports.close()


def test_no_server_misses_the_launcher_while_another_is_down(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "sparsefleet.launch")
    with NativeServers(2, peer_timeout_s=60.0) as servers:
        servers.loops[1].stop()
        servers.servers[1].stop()
        reports = LostWorkers(servers.endpoints, "auto", ENVIRON)
        reports.expect(1)
        wait_until(
            lambda: "has not reached all servers yet" in caplog.text, "the report has failed"
        )
        reports.close()
        assert not servers.servers[0].has_client("launcher")
        assert not reports.is_back(1)
