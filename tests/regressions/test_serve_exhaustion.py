"""Strangers cannot exhaust a service: a real process, real sockets.

330 idle connections used to deny the service to everybody for 75 s; one request of 4 MB took 430 MB
of memory and four at once took 1.2 GB.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import resource
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from tests.support.launch_process import wait_until
from tests.support.served_models import score_of, telling
from tests.support.service_process import DEADLINE_S, ServiceProcess
from torch import Tensor, nn

from sparsefleet.nn import SparseEmbeddingBag
from sparsefleet.serving.export import save_inference_model

EXAMPLES = {"examples": [{"ad": 5}]}
PROMPT_S = 10.0
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
WIDTH = 64


def connected(url: str, source: str = "127.0.0.1") -> socket.socket:
    address = httpx.URL(url)
    assert address.port is not None
    return socket.create_connection((address.host, address.port), DEADLINE_S, (source, 0))


def idle(url: str, source: str = "127.0.0.1") -> socket.socket:
    """Return a connection that has sent a request and now waits."""
    connection = connected(url, source)
    connection.sendall(HEAD)
    answer = b""
    while not answer.endswith(b'{"status":"alive"}'):
        part = connection.recv(4096)
        assert part, answer
        answer += part
    return connection


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def require_prompt_answer(url: str) -> None:
    begin = time.monotonic()
    answer = httpx.post(url + "/v1/predict", json=EXAMPLES, timeout=DEADLINE_S)
    assert answer.status_code == 200, answer.text
    assert answer.json()["predictions"]["output"] == [score_of(1)]
    assert time.monotonic() - begin < PROMPT_S


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return telling(tmp_path_factory.mktemp("models") / "one", 1)


@contextlib.contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Limit the open files of processes started meanwhile; they may raise the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def service(model: Path) -> Iterator[ServiceProcess]:
    flags = ("--max-connections", "200", "--max-connections-per-address", "150")
    more = ("--max-requests", "4", "--read-timeout", str(DEADLINE_S))
    with few_descriptors(256):
        process = ServiceProcess(model, *flags, *more)
    with process:
        yield process


def number(service: ServiceProcess, metric: str) -> float:
    text = httpx.get(service.url + "/metrics").text
    lines = (line.split() for line in text.splitlines())
    return next(float(line[1]) for line in lines if line[0] == f"sparsefleet_{metric}")


def test_idle_connections_deny_the_service_to_nobody(service: ServiceProcess) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(idle(service.url)) for _ in range(330)]
        require_prompt_answer(service.url)
        wait_until(lambda: is_closed(held[0]), "the oldest idle connection to be closed")
        assert not is_closed(held[-1])
        assert number(service, "connections") <= 150
        assert number(service, "connections_dropped") >= 180


def test_one_address_takes_nothing_from_another(service: ServiceProcess) -> None:
    with contextlib.ExitStack() as stack:
        try:
            others = [stack.enter_context(idle(service.url, "127.0.0.2")) for _ in range(50)]
        except OSError:
            pytest.skip("this machine has one loopback address")
        for _ in range(200):
            stack.enter_context(idle(service.url))
        assert number(service, "connections") <= 200
        assert not any(map(is_closed, others))


def test_requests_that_are_never_sent_whole_take_nobodys_place(service: ServiceProcess) -> None:
    head = (
        "POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: 4000000\r\n\r\n{"
    )
    with contextlib.ExitStack() as stack:
        for _ in range(140):  # more requests than slots, and more bytes than fit
            stack.enter_context(connected(service.url)).sendall(head.encode())
        wait_until(lambda: number(service, "requests_under_way") == 140, "all to be under way")
        require_prompt_answer(service.url)
        # Even these are closed to make room for a client with a request.
        for _ in range(20):
            stack.enter_context(idle(service.url))
        require_prompt_answer(service.url)


def test_requests_that_are_no_http_do_not_fill_the_log(service: ServiceProcess) -> None:
    for _ in range(50):
        with connected(service.url) as stranger:
            stranger.sendall(b"no request\r\n\r\n")
            assert b"400 Bad Request" in stranger.recv(1000)
    require_prompt_answer(service.url)
    assert 1 <= service.errors().count("Invalid HTTP request") < 10


class Bag(nn.Module):
    """Accepts any number of ids per example."""

    def __init__(self) -> None:
        super().__init__()
        self.tags = SparseEmbeddingBag("tags", WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, tags: tuple[Tensor, Tensor]) -> Tensor:
        found: Tensor = self.head(self.tags(tags)).squeeze(1)
        return found


@functools.cache
def exported_bag() -> Path:
    directory = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    example = {"tags": (torch.arange(10), torch.tensor([0, 5]))}
    save_inference_model(directory, Bag(), example, targets="output", onnx=False)
    return directory


def memory_mib(service: ServiceProcess, kind: str = "VmHWM") -> int:
    """Return the peak memory so far."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if kind in line) >> 10


def ask_for(service: ServiceProcess, num_ids: int, requests: int) -> list[httpx.Response]:
    """Send this many requests at once; return their answers."""
    body = b'{"examples": [{"tags": [' + b",".join([b"7"] * num_ids) + b"]}]}"
    answers: list[httpx.Response] = []

    def ask() -> None:
        headers = {"content-type": "application/json"}
        url = service.url + "/v1/predict"
        answers.append(httpx.post(url, content=body, headers=headers, timeout=DEADLINE_S))

    threads = [threading.Thread(target=ask) for _ in range(requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(answers) == requests
    return answers


@pytest.fixture(scope="module")
def bag() -> Iterator[ServiceProcess]:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    flags = ("--engine", "torch", "--timeout", "60", "--max-bytes-under-way", str(192 << 20))
    with ServiceProcess(exported_bag(), *flags, "--keep-alive", "0.2") as process:
        ask_for(process, 1000, 1)
        yield process


def test_memory_of_a_request_is_bounded_before_it_is_taken(bag: ServiceProcess) -> None:
    """A request of 4 MB has 2 million ids, whose rows would take 512 MB."""
    before = memory_mib(bag)
    for answer in ask_for(bag, 2_000_000, 1) + ask_for(bag, 2_000_000, 4):
        assert answer.status_code == 413
        assert answer.json()["error"]["name"] == "too_many_ids"
    assert memory_mib(bag) - before < 160


def test_memory_of_requests_at_once_is_bounded_in_total(bag: ServiceProcess) -> None:
    """Each request looks up 15 MiB of rows, within its limit; of sixteen at once, those that fit
    are answered.
    """
    before = memory_mib(bag)
    statuses = [answer.status_code for answer in ask_for(bag, 60_000, 16)]
    assert set(statuses) <= {200, 429}
    assert 200 in statuses
    assert memory_mib(bag) - before < 192
    assert ask_for(bag, 60_000, 1)[0].status_code == 200


def test_connection_that_is_idle_for_too_long_is_closed(bag: ServiceProcess) -> None:
    with idle(bag.url) as waiting:
        waiting.settimeout(PROMPT_S)
        assert waiting.recv(1) == b""
