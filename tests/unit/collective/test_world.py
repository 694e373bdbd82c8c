"""Ranks that join, and their errors when one is lost."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from tests.support.ports import free_ports
from tests.support.rank_processes import RankProcesses

from sparsefleet.collective import World
from sparsefleet.collective.rendezvous import choose_device, loopback_sockets
from sparsefleet.errors import ConfigError, DeadlineError, PeerLostError
from sparsefleet.fleet import join_world, role_from_environment


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankProcesses]:
    with RankProcesses() as processes:
        yield processes


@pytest.fixture
def free_port() -> int:
    return free_ports()[0]


def test_rank_that_is_alone_needs_nobody() -> None:
    with World.join() as world:
        assert (world.rank, world.size, world.ranks_per_node, world.group) == (0, 1, 1, None)
        world.barrier("nobody else")
        tensor = torch.ones(2)
        world.broadcast([tensor])
        assert world.new_group([0]) is None
        assert world.lost_ranks() == []
    assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"rank": 2, "size": 2}, "rank must be in 0..1, got 2"),
        ({"size": 2, "ranks_per_node": 3}, "ranks_per_node must be in 1..2, or 0, got 3"),
        ({"size": 2}, "several ranks need a meeting_point"),
        ({"device": "cuda:7"}, "device cuda:7 was requested, but torch sees"),
    ],
)
def test_facts_that_cannot_be_are_refused(facts: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        World.join(**facts)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_fallback_to_the_cpu_can_be_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device(1, count=2) == torch.device("cpu")
    monkeypatch.setenv("SPARSEFLEET_REQUIRE_CUDA", "1")
    with pytest.raises(ConfigError, match="sees no GPUs for 2 processes"):
        choose_device(1, count=2)
    monkeypatch.setenv("SPARSEFLEET_REQUIRE_CUDA", "yes")
    with pytest.raises(ConfigError, match="REQUIRE_CUDA must be 0 or 1, got 'yes'"):
        choose_device()


def test_interface_that_the_user_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    with loopback_sockets(True):
        assert os.environ["GLOO_SOCKET_IFNAME"].startswith("lo")
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth7")
    with loopback_sockets(True):
        assert os.environ["GLOO_SOCKET_IFNAME"] == "eth7"


def tell_each_other(world: World) -> list[object]:
    gathered = world.all_gather_bytes(b"x" * world.rank)
    empty = world.all_gather_bytes(b"")
    tensors = [
        torch.full((3, 2), float(world.rank)).t(),  # not contiguous
        torch.tensor(world.rank),
        torch.full((2,), world.rank, dtype=torch.bfloat16),
        torch.tensor([world.rank > 0]),
        torch.zeros(0),
    ]
    world.broadcast(tensors, source=1)
    pair = world.new_group([1, 2])
    total = torch.tensor(float(world.rank))
    if pair is not None:
        dist.all_reduce(total, group=pair)
    for number in range(3):
        world.barrier(f"barrier {number}")
    return [
        [len(part) for part in gathered],
        empty == [b""] * world.size,
        [tensor.tolist() for tensor in tensors],
        float(total),
        world.lost_ranks(),
    ]


def test_ranks_gather_broadcast_and_make_groups(ranks: RankProcesses) -> None:
    found = ranks.run(tell_each_other, 3)
    wanted = [[[1.0] * 3] * 2, 1, [1.0, 1.0], [True], []]
    for rank, (lengths, is_empty, tensors, total, lost) in enumerate(found):
        assert lengths == [0, 1, 2]
        assert is_empty
        assert tensors == wanted
        assert total == (0.0 if rank == 0 else 3.0)
        assert lost == []


def be_killed_or_tell(world: World, calls: str) -> str:
    world.all_gather_bytes(b"")  # nobody is still joining
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

    def call() -> None:
        if calls == "barrier":
            world.barrier("saving")
        with world.naming_lost("all-reduce of step 12"):
            dist.all_reduce(torch.ones(4), group=world.group)

    with pytest.raises(PeerLostError) as found:
        call()
    world.close(found.value)
    return str(found.value)


@pytest.mark.parametrize(
    ("calls", "what"), [("all-reduce", "all-reduce of step 12"), ("barrier", "saving")]
)
def test_killed_rank_is_named_by_all_others(ranks: RankProcesses, calls: str, what: str) -> None:
    first, _, last = ranks.run(be_killed_or_tell, 3, calls, lost=(1,))
    for told in (first, last):
        assert told.startswith(f"{what}: ")
        assert "rank 1 is lost" in told


def be_stopped_or_tell(rank: int, size: int, path: str) -> str:
    store = dist.FileStore(path, size)
    world = World.join(rank=rank, size=size, meeting_point=store, timeout_s=6.0)
    pids = [int(text) for text in world.all_gather_bytes(str(os.getpid()).encode())]
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    with pytest.raises(PeerLostError) as found, world.naming_lost("all-reduce of step 12"):
        dist.all_reduce(torch.ones(4), group=world.group)
    world.close(found.value)
    os.kill(pids[1], signal.SIGKILL)  # so that no rank waits for it
    return str(found.value)


def test_stopped_rank_is_named_when_its_time_is_over(ranks: RankProcesses) -> None:
    told, _ = ranks.run(be_stopped_or_tell, 2, bare=True, lost=(1,))
    assert told == "all-reduce of step 12: rank 1 is lost"


def fail_or_tell(world: World) -> str:
    world.all_gather_bytes(b"")  # nobody is still joining
    if world.rank == 1:
        # Nobody answers it; the process must end anyway.
        dist.all_reduce(torch.ones(4), group=world.group, async_op=True)
        world.close(ValueError("bad batch"))
        return ""
    with pytest.raises(PeerLostError) as found:
        world.barrier("the next epoch")
    world.close(found.value)
    return str(found.value)


def test_rank_that_fails_tells_the_others_why(ranks: RankProcesses) -> None:
    told, _ = ranks.run(fail_or_tell, 2)
    assert told == "the next epoch: rank 1 failed: ValueError: bad batch"


def be_busy(world: World) -> None:
    if world.rank == 1:
        ctypes.PyDLL(None).sleep(6)  # no other thread of the process runs meanwhile
    world.barrier("the next epoch")


def test_rank_that_is_only_busy_is_not_taken_for_lost(ranks: RankProcesses) -> None:
    ranks.run(be_busy, 2)


def be_late(world: World) -> str:
    told = ""
    if world.rank == 0:
        world.timeout_s = 0.5
        with pytest.raises(DeadlineError) as found:
            world.barrier("evaluate")
        told = str(found.value)
    world.all_gather_bytes(b"here")  # the collective that rank 1 reached instead
    return told


def test_rank_that_does_not_come_is_named(ranks: RankProcesses) -> None:
    told, _ = ranks.run(be_late, 2)
    assert told == "evaluate: rank 1 did not arrive within 0.5 s; all 2 ranks must make this call"


def meet_by_environment(rank: int, size: int, path: str, family: str, port: int) -> list[object]:
    place = f"127.0.0.1:{port}"
    os.environ.update(
        {
            "ours": {
                "SPARSEFLEET_ROLE": "worker",
                "SPARSEFLEET_INDEX": str(rank),
                "SPARSEFLEET_WORKERS": str(size),
                "SPARSEFLEET_MEETING_POINT": place,
            },
            "paddle": {
                "PADDLE_TRAINER_ENDPOINTS": f"{place},127.0.0.1:{port + 1}",
                "PADDLE_CURRENT_ENDPOINT": f"127.0.0.1:{port + rank}",
                "PADDLE_TRAINER_ID": str(rank),
                "PADDLE_TRAINERS_NUM": str(size),
                "FLAGS_selected_gpus": str(rank),
            },
            "torchrun": {
                "RANK": str(rank),
                "WORLD_SIZE": str(size),
                "LOCAL_WORLD_SIZE": str(size),
                "MASTER_ADDR": "localhost",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "TORCHELASTIC_RESTART_COUNT": "1",
            },
        }[family]
    )
    role = role_from_environment(is_collective=True)
    found: list[object] = []
    for _ in range(2):  # a script may train twice
        with join_world(role, timeout_s=30.0) as world:
            found = [world.rank, world.ranks_per_node, len(world.all_gather_bytes(b""))]
    return found


@pytest.mark.parametrize("family", ["ours", "paddle", "torchrun"])
def test_ranks_meet_by_each_family_of_variables(
    ranks: RankProcesses, free_port: int, family: str
) -> None:
    kept = None
    if family == "torchrun":  # its agent keeps the store
        kept = dist.TCPStore("localhost", free_port, is_master=True, wait_for_workers=False)
    found = ranks.run(meet_by_environment, 2, family, free_port, bare=True)
    assert found == [[0, 2, 2], [1, 2, 2]]
    del kept


def join_the_scripts_group(rank: int, size: int, path: str) -> list[object]:
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    with World.join(rank=rank, size=size) as world:
        found = [len(world.all_gather_bytes(b"")), world.lost_ranks()]
    return [*found, dist.is_initialized()]


def test_process_group_of_the_script_is_used_and_left_to_it(ranks: RankProcesses) -> None:
    assert ranks.run(join_the_scripts_group, 2, bare=True) == [[2, [], True]] * 2


def join_with_other_facts(rank: int, size: int, path: str) -> str:
    store = dist.FileStore(path, size)
    with pytest.raises(ConfigError) as found:
        World.join(rank=rank, size=size, ranks_per_node=1 + rank, meeting_point=store, timeout_s=30)
    return str(found.value)


def test_ranks_with_different_facts_are_named(ranks: RankProcesses) -> None:
    first, _ = ranks.run(join_with_other_facts, 2, bare=True)
    assert (
        "rank 1 was started for 2 ranks, 2 per node, gloo, but rank 0 for 2 ranks, 1 per node"
        in first
    )


def wait_in_vain(rank: int, size: int, path: str, port: int) -> str:
    if rank == 1:
        return ""
    with pytest.raises(DeadlineError) as found:
        World.join(rank=0, size=size, meeting_point=f"127.0.0.1:{port}", timeout_s=0.5)
    return str(found.value)


def test_rank_that_was_never_started_is_named(ranks: RankProcesses, free_port: int) -> None:
    told, _ = ranks.run(wait_in_vain, 2, free_port, bare=True)
    assert told.startswith(
        f"rank 1 did not reach the rendezvous at 127.0.0.1:{free_port} within 0.5 s"
    )


def test_taken_port_of_the_meeting_point_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"rank 0 cannot listen at .* {place}"):
            World.join(rank=0, size=2, meeting_point=place, timeout_s=1.0)
