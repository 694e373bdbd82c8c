"""Workers that synchronize through a store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.servers import NativeServers

from sparsefleet.errors import ConfigError, DeadlineError, PeerLostError, ShapeError
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo


def worker(index: int, servers: NativeServers, worker_num: int = 3) -> RoleInfo:
    return RoleInfo(
        kind="worker",
        index=index,
        worker_num=worker_num,
        server_endpoints=tuple(servers.endpoints),
    )


def test_gather_gives_everybodys_bytes_by_rank_of_any_size() -> None:
    def gather(index: int, servers: NativeServers) -> tuple[list[bytes], list[bytes]]:
        with servers.connect(name=f"worker-{index}") as store:
            meeting = Meeting(store, worker(index, servers), wait_s=30.0)
            large = meeting.all_gather(bytes([index]) * (index * 100_000))
            meeting.barrier()
            return large, meeting.all_gather(b"%d" % index)

    with NativeServers(2) as servers, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda index: gather(index, servers), range(3)))
    for large, small in results:
        assert [len(part) for part in large] == [0, 100_000, 200_000]
        assert large[2] == b"\x02" * 200_000
        assert small == [b"0", b"1", b"2"]


def test_gathering_takes_each_worker_a_few_requests_however_many_there_are() -> None:
    num_workers = 16
    requests = "server.request_seconds.other.le.inf"

    def gather(index: int, servers: NativeServers) -> list[bytes]:
        with servers.connect(name=f"worker-{index}") as store:
            return Meeting(store, worker(index, servers, num_workers)).all_gather(b"%d" % index)

    with NativeServers(1) as servers, ThreadPoolExecutor(num_workers) as pool:
        with servers.connect(name="observer") as observer:
            before = observer.stats()[0][requests]
            found = list(pool.map(lambda index: gather(index, servers), range(num_workers)))
            asked = observer.stats()[0][requests] - before
    assert found == [[b"%d" % index for index in range(num_workers)]] * num_workers
    assert asked < 12 * num_workers  # join, put, meet, read, meet, delete, goodbye; heartbeats


def test_the_first_decides_for_all_and_its_errors_are_everybodys() -> None:
    def decide(index: int, servers: NativeServers) -> tuple[bytes | None, str]:
        def rule(given: list[bytes]) -> bytes:
            assert index == 0
            return b"-".join(given) * 10_000

        def refuse(given: list[bytes]) -> bytes:
            raise ShapeError(f"{len(given)} are too many")

        with servers.connect(name=f"worker-{index}") as store:
            meeting = Meeting(store, worker(index, servers), wait_s=30.0)
            answer = meeting.decide(b"%d" % index, rule)
            with pytest.raises(ShapeError, match="3 are too many") as raised:
                meeting.decide(b"", refuse)
            assert meeting.decide(b"", lambda _: b"on") == b"on"
            return answer, str(raised.value)

    with NativeServers(2) as servers, ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda index: decide(index, servers), range(3)))
    assert {answer for answer, _ in results} == {b"0-1-2" * 10_000}
    assert [text for _, text in results] == ["3 are too many"] + ["in worker 0: 3 are too many"] * 2


def test_a_long_wait_for_the_others_is_reported_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sparsefleet.fleet.meeting._NOTICE_S", 0.1)
    with NativeServers(1) as servers, servers.connect(name="worker-0") as store:
        with pytest.raises(DeadlineError, match="called by all workers"):
            Meeting(store, worker(0, servers, 2), wait_s=0.3).barrier()
    (warning,) = [one for one in caplog.messages if "still waiting" in one]
    assert "rank 1 at 0" in warning


def test_gather_without_the_others_ends_at_its_deadline() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        # The server answers a tenth of the wait early, at most 0.2 s: 0.03 s is too little on a
        # busy machine.
        meeting = Meeting(store, worker(0, servers), wait_s=2.0)
        with pytest.raises(DeadlineError, match="called by all workers.*rank 1 at 0, rank 2 at 0"):
            meeting.all_gather(b"mine")


def test_gather_takes_bytes_only() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        with pytest.raises(ConfigError, match="got str"):
            Meeting(store, worker(0, servers)).all_gather("text")  # type: ignore[arg-type]


def meet_without_the_last(servers: NativeServers, *, leaves: bool, go_on: bool) -> list[bytes]:
    """Return what the first of three workers gathers if the last left after the first meeting."""

    def meet(index: int) -> list[bytes]:
        with servers.connect(name=f"worker-{index}") as store:
            role = worker(index, servers)
            meeting = Meeting(store, role, wait_s=30.0, continue_without_lost=go_on)
            meeting.barrier()
            if index == 2:
                if leaves:
                    meeting.leave()
                return []
            return meeting.all_gather(b"%d" % index)

    with ThreadPoolExecutor(3) as pool:
        first, *_ = [pool.submit(meet, index) for index in range(3)]
    return first.result()


@pytest.mark.parametrize("leaves", [False, True])
def test_worker_that_is_gone_is_named_or_left_out(leaves: bool) -> None:
    with NativeServers(2, peer_timeout_s=1.5) as servers:
        assert meet_without_the_last(servers, leaves=leaves, go_on=True) == [b"0", b"1"]
    with NativeServers(2, peer_timeout_s=1.5) as servers, pytest.raises(PeerLostError, match="2"):
        meet_without_the_last(servers, leaves=leaves, go_on=False)
