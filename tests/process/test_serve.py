"""`sparsefleet serve` and `sparsefleet serve-switch` as processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.support.launch_process import wait_until
from tests.support.served_models import score_of, telling
from tests.support.service_process import DEADLINE_S, ServiceProcess

EXAMPLES = {"examples": [{"ad": 5}, {"ad": 6}]}
BODY = json.dumps(EXAMPLES).encode()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    telling(folder / "one", 1)
    telling(folder / "two", 2)
    (folder / "active.json").write_text('{"active": "one", "previous": null}')
    return folder


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(
        folder, "--read-timeout", "0.5", "--max-request-bytes", "100000"
    ) as process:
        yield process


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparsefleet", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


class RawRequest:
    """Send raw bytes that no client would send."""

    def __init__(self, url: str, *head: str) -> None:
        address = httpx.URL(url)
        assert address.port is not None
        self.socket = socket.create_connection((address.host, address.port), DEADLINE_S)
        self.send("\r\n".join([*head, "Host: localhost", "", ""]).encode())

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def answer(self) -> str:
        """Read until the other side closes."""
        parts = []
        with self.socket:
            while part := self.socket.recv(65536):
                parts.append(part)
        return b"".join(parts).decode()


def test_switch_and_rollback_by_one_command_without_a_dropped_request(
    service: ServiceProcess,
) -> None:
    scores: list[float] = []
    failures: list[str] = []
    ended = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=service.url, timeout=DEADLINE_S) as client:
            while not ended.is_set():
                answer = client.post("/v1/predict", json=EXAMPLES)
                found = set(answer.json().get("predictions", {}).get("output", ()))
                if answer.status_code != 200 or len(found) != 1:
                    failures.append(answer.text)
                scores.extend(found)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: score_of(1) in scores or failures, "an answer")
        switched = command("serve-switch", service.url, "two")
        assert switched.returncode == 0, switched.stderr
        assert switched.stdout.startswith("serving two (")
        wait_until(lambda: score_of(2) in scores or failures, "an answer of the new version")
        rolled_back = command("serve-switch", service.url, "--rollback")
        assert rolled_back.stdout.startswith("serving one (")
        scores.clear()
        wait_until(lambda: score_of(1) in scores or failures, "an answer of the old version")
    finally:
        ended.set()
        for client in clients:
            client.join(DEADLINE_S)
    assert not failures
    assert set(scores) <= {score_of(1), score_of(2)}


def test_switch_command_lists_versions_and_tells_what_is_wrong(service: ServiceProcess) -> None:
    listed = command("serve-switch", service.url)
    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == ["one", "two"]
    missing = command("serve-switch", service.url, "nine")
    assert missing.returncode == 1
    assert "there is no version 'nine'" in missing.stderr
    both = command("serve-switch", service.url, "one", "--rollback")
    assert "not both" in both.stderr
    nobody = command("serve-switch", "http://127.0.0.1:1", "one")
    assert nobody.returncode == 1
    assert "unreachable, or not a sparsefleet service" in nobody.stderr
    assert "URL must start with" in command("serve-switch", "ftp://x", "one").stderr


def test_sigterm_ends_it_after_the_requests_under_way(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a-secret-token\n")
    allowed = {"Authorization": "Bearer a-secret-token"}
    flags = ("--drain-delay", "2", "--token-file", str(secret))
    with ServiceProcess(folder / "one", *flags) as process:
        refused = command("serve-switch", process.url)
        assert refused.returncode == 1
        assert "HTTP 401" in refused.stderr
        listed = command("serve-switch", process.url, "--token-file", str(secret))
        assert listed.stdout.startswith("one\t")
        request = RawRequest(
            process.url,
            "POST /v1/predict HTTP/1.1",
            "Authorization: Bearer a-secret-token",
            "Content-Type: application/json",
            f"Content-Length: {len(BODY)}",
        )
        metrics = process.url + "/metrics"
        wait_until(
            lambda: "requests_under_way 1.0" in httpx.get(metrics, headers=allowed).text,
            "the request to be under way",
        )
        process.send(signal.SIGTERM)
        wait_until(
            lambda: httpx.get(process.url + "/readyz", headers=allowed).status_code == 503,
            "it to be draining",
        )
        during = httpx.post(process.url + "/v1/predict", json=EXAMPLES, headers=allowed)
        assert during.status_code == 200
        assert during.headers["connection"] == "close"
        request.send(BODY)
        answer = request.answer()
        assert answer.startswith("HTTP/1.1 200")
        assert str(score_of(1)) in answer
        assert process.wait() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(process.url + "/healthz")


@pytest.mark.job
def test_second_signal_ends_it_at_once(folder: Path) -> None:
    with ServiceProcess(folder / "one", "--drain-delay", "600") as process:
        process.send(signal.SIGTERM)
        wait_until(
            lambda: httpx.get(process.url + "/readyz").status_code == 503, "it to be draining"
        )
        process.send(signal.SIGINT)
        assert process.wait() == 0


def test_large_request_is_refused_before_it_is_sent(service: ServiceProcess) -> None:
    request = RawRequest(
        service.url,
        "POST /v1/predict HTTP/1.1",
        "Content-Type: application/json",
        "Content-Length: 10000000000",
    )
    answer = request.answer()
    assert answer.startswith("HTTP/1.1 413")
    assert '"too_large"' in answer


def test_sender_of_a_large_request_can_read_the_answer(service: ServiceProcess) -> None:
    for content in (b" " * 5_000_000, iter([b" " * 100_000] * 50)):
        answer = httpx.post(
            service.url + "/v1/predict",
            content=content,
            headers={"content-type": "application/json"},
        )
        assert answer.status_code == 413


def test_request_that_is_sent_too_slowly_is_given_up(service: ServiceProcess) -> None:
    request = RawRequest(
        service.url,
        "POST /v1/predict HTTP/1.1",
        "Content-Type: application/json",
        "Content-Length: 100",
    )
    request.send(b'{"exam')
    answer = request.answer()
    assert answer.startswith("HTTP/1.1 408")
    assert '"body_too_slow"' in answer


@pytest.mark.parametrize(
    "head",
    [
        ("NOT HTTP",),
        ("POST /v1/predict HTTP/1.1", "Content-Length: many"),
    ],
)
def test_bytes_that_are_not_a_request_are_refused_and_it_stays_up(
    head: tuple[str, ...], service: ServiceProcess
) -> None:
    assert RawRequest(service.url, *head).answer().startswith("HTTP/1.1 400")
    assert httpx.get(service.url + "/healthz").status_code == 200


@pytest.mark.parametrize("sent", [b"", b"POST /v1/predict HTTP/1.1\r\nContent-"])
def test_connection_that_sends_no_whole_head_is_closed(
    sent: bytes, service: ServiceProcess
) -> None:
    address = httpx.URL(service.url)
    assert address.port is not None
    with socket.create_connection((address.host, address.port), DEADLINE_S) as connection:
        connection.sendall(sent)
        assert connection.recv(100) == b""


def test_head_without_an_end_is_cut_off_and_it_stays_up(service: ServiceProcess) -> None:
    address = httpx.URL(service.url)
    assert address.port is not None
    with socket.create_connection((address.host, address.port), DEADLINE_S) as connection:
        with contextlib.suppress(ConnectionError):  # it has closed while this was being sent
            connection.sendall(b"GET /healthz HTTP/1.1\r\nX-Long: " + b"x" * 5_000_000)
            while connection.recv(1000):
                pass
    assert httpx.get(service.url + "/healthz").status_code == 200


def test_sender_that_goes_away_leaves_nothing_behind(service: ServiceProcess) -> None:
    for _ in range(5):
        request = RawRequest(
            service.url,
            "POST /v1/predict HTTP/1.1",
            "Content-Type: application/json",
            "Content-Length: 1000",
        )
        request.socket.close()
    wait_until(
        lambda: "requests_under_way 0.0" in httpx.get(service.url + "/metrics").text,
        "the requests to be forgotten",
    )


def test_port_that_is_taken_is_reported(service: ServiceProcess, folder: Path) -> None:
    port = str(httpx.URL(service.url).port)
    result = command("serve", str(folder), "--port", port)
    assert result.returncode == 1
    assert f"127.0.0.1:{port} is in use" in result.stderr
    assert "Traceback" not in result.stderr


def test_damaged_export_is_reported_in_one_line(tmp_path: Path) -> None:
    directory = telling(tmp_path / "export", 1)
    rows = next(directory.glob("rows-*"))
    rows.write_bytes(rows.read_bytes()[:-1])
    result = command("serve", str(directory), "--port", "0")
    assert result.returncode == 1
    assert "bytes, expected" in result.stderr
    assert len(result.stderr.splitlines()) == 1
