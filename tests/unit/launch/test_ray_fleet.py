"""What a job on Ray knows without a Ray cluster: settings, the coordinator, addresses."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import tempfile
from pathlib import Path

import pytest

from sparsefleet.errors import ConfigError, PeerLostError
from sparsefleet.launch.ray.coordinator import Coordinator, Presence, Reported, continued
from sparsefleet.launch.ray.servers import FleetPlan, ScriptPlan, Servers, log_base, memory_bytes


def _plan(**more: object) -> FleetPlan:
    settings = {"name": "test", "job_id": "a" * 32, "job_key": "k" * 64, "num_workers": 2}
    return FleetPlan(servers=Servers(1), **(settings | more))  # type: ignore[arg-type]


def _who(role: str, index: int, pid: int = 1, node: str = "node-a", **more: object) -> Presence:
    return Presence(
        role=role,  # type: ignore[arg-type]
        index=index,
        pid=pid,
        node_id=node,
        host="127.0.0.1",
        address=f"127.0.0.1:{pid}",
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8GiB", 8 << 30), ("500MB", 500_000_000), ("1.5 Ki", 1536), (7, 7), ("12", 12)],
)
def test_memory_is_read_with_its_unit(text: int | str, expected: int) -> None:
    assert memory_bytes(text) == expected


@pytest.mark.parametrize("text", ["8 gigabytes", "", "-1", -1, True])
def test_unreadable_memory_is_quoted(text: object) -> None:
    with pytest.raises(ConfigError, match=r"Servers\.memory .* got"):
        Servers(1, memory=text)  # type: ignore[arg-type]


def test_wrong_settings_of_servers_are_named() -> None:
    with pytest.raises(ConfigError, match=r"Servers\.placement must be SPREAD or"):
        Servers(1, placement="EVERYWHERE")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Servers\.num_servers"):
        Servers(-1)
    with pytest.raises(ConfigError, match=r"an amount >= 0 .* got -1 for 'disk'"):
        Servers(1, resources={"disk": -1})
    with pytest.raises(ConfigError, match=r"use Servers\(num_cpus=\.\.\.\)"):
        Servers(1, resources={"CPU": 2})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"train_loop_per_worker": 3}, r"must be a training function, got int"),
        ({"servers": "2"}, r"RayTrainer\.servers must be a Servers or an int, got str"),
        ({"scaling_config": {"num_workers": 2}}, r"must be a ScalingConfig, got dict"),
        ({"run_config": "here"}, r"RayTrainer\.run_config must be a RunConfig, got str"),
        ({"datasets": ["train"]}, r"RayTrainer\.datasets must be a Mapping, got list"),
    ],
)
def test_wrong_settings_of_a_trainer_are_named(setting: dict[str, object], message: str) -> None:
    from sparsefleet.ray import RayTrainer

    settings = {"train_loop_per_worker": print, **setting}
    with pytest.raises(ConfigError, match=message):
        RayTrainer(**settings)  # type: ignore[arg-type]


def test_users_of_one_machine_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = Path(log_base(Servers(1)))
    assert (own.parent, own.stat().st_mode & 0o777) == (tmp_path, 0o700)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert not own.name.endswith(str(other))
    (tmp_path / f"sparsefleet-ray-{other}").mkdir()  # by a different user
    with pytest.raises(ConfigError, match=f"must be a directory owned by user {other}"):
        log_base(Servers(1))
    assert log_base(Servers(1, log_dir="/scratch")) == "/scratch"


def test_the_job_key_is_that_of_the_environment_or_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_train = pytest.importorskip("ray.train", reason="pip install sparsefleet[ray]")
    from sparsefleet.launch.ray.trainer import make_plan

    def key() -> str:
        run = ray_train.RunConfig(name="keys", storage_path=str(tmp_path))
        return make_plan(Servers(1), 1, run).job_key

    for name in ("SPARSEFLEET_JOB_KEY", "SPARSEFLEET_JOB_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    assert key() != key()
    (tmp_path / "job.key").write_text("as secret as can be\n")
    (tmp_path / "job.key").chmod(0o600)
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY_FILE", str(tmp_path / "job.key"))
    assert key() == "as secret as can be"


def test_a_reader_of_the_process_gets_the_metrics_of_its_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sparsefleet.engine.worker_metrics import WorkerMetrics
    from sparsefleet.monitor import PROCESS, endpoint_file

    for name in ("SPARSEFLEET_METRICS", "SPARSEFLEET_OTLP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(endpoint_file, "_serving", endpoint_file._Serving())
    endpoint_file.expect_reader()
    training = WorkerMetrics()
    training.serve(None)
    try:
        names = {each.name for each in PROCESS.collect()}
        assert "sparsefleet_worker_steps_total" in names
    finally:
        assert training._remove is not None
        training._remove()


def test_a_run_is_continued_only_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_train = pytest.importorskip("ray.train", reason="pip install sparsefleet[ray]")
    from sparsefleet.launch.ray import trainer

    run = ray_train.RunConfig(name="ads", storage_path=str(tmp_path))
    plan = trainer.make_plan(Servers(1), 1, run)
    state = {
        "job_id": plan.job_id,
        "attempt": 0,
        "shape": plan.shape,
        "server_nodes": {},
        "own_loops": [],
    }
    Path(plan.state_file).write_text(json.dumps(state))
    running = [{"name": plan.coordinator_name, "namespace": "other"}]
    seen = [running, running, []]
    monkeypatch.setattr(trainer.ray.util, "list_named_actors", lambda **_: seen.pop(0))
    monkeypatch.setattr(trainer, "_LOOK_S", 0.0)
    assert trainer.make_plan(Servers(1), 1, run).attempt == 1
    monkeypatch.setattr(trainer.ray.util, "list_named_actors", lambda **_: running)
    monkeypatch.setattr(trainer, "_END_S", 0.0)
    with pytest.raises(ConfigError, match="the run 'ads' is still running; wait until it ends"):
        trainer.make_plan(Servers(1), 1, run)

    def end(**_: object) -> list[dict[str, str]]:
        Path(plan.state_file).unlink()
        return []

    monkeypatch.setattr(trainer.ray.util, "list_named_actors", end)
    assert trainer.make_plan(Servers(1), 1, run).attempt == 0


def test_a_limit_for_starting_ends_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray.train", reason="pip install sparsefleet[ray]")
    from sparsefleet.launch.ray.trainer import _start_timeout

    name = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
    monkeypatch.delenv(name, raising=False)
    for seconds in (10.0, 600.0):
        with _start_timeout(seconds):
            assert os.environ[name] == str(seconds)
    monkeypatch.setenv(name, "5")
    with _start_timeout(600.0):
        assert os.environ[name] == "5"


def test_a_worker_inherits_the_reports_and_the_checkpoint_of_the_one_it_replaces() -> None:
    async def check() -> None:
        coordinator = Coordinator(_plan(num_workers=1))
        await coordinator.present(_who("server", 0))
        reports = Reported(count=2, outside=2)
        await coordinator.join(_who("worker", 0, 1, checkpoint="run/checkpoint_1", reports=reports))
        member = await coordinator.join(_who("worker", 0, 2, start=1))
        found = (await coordinator.processes())["worker-0"]
        assert (found.pid, found.reports, found.checkpoint) == (2, reports, "run/checkpoint_1")
        assert member.who == found

    asyncio.run(check())


def test_a_report_that_another_worker_has_made_counts_for_a_lost_one() -> None:
    """All workers make it together; one of them was lost before it could say so."""

    async def check() -> None:
        coordinator = Coordinator(_plan())
        await coordinator.present(_who("server", 0))
        mine = _who("worker", 1, 11, reports=Reported(count=2, outside=2))
        others = _who("worker", 0, 10, reports=Reported(count=3, outside=3))
        for who in (mine, others):
            await coordinator.news((0.0, 0), who)
        member = await coordinator.join(_who("worker", 1, 12, start=1))
        assert member.who.reports.count == 3
        assert (await coordinator.processes())["worker-1"].reports.count == 3

    asyncio.run(check())


def test_the_job_key_is_not_shown() -> None:
    assert "kkkk" not in repr(_plan())


def test_a_worker_joins_when_all_are_there_and_learns_whom_it_replaces() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(_plan())
        first = asyncio.create_task(coordinator.join(_who("worker", 0, pid=10)))
        second = asyncio.create_task(coordinator.join(_who("worker", 1, pid=11)))
        await asyncio.sleep(0)
        assert not first.done()
        assert not second.done()
        await coordinator.present(_who("server", 0, pid=12))
        member = await first
        assert (member.meeting_point, member.workers_per_node) == ("127.0.0.1:10", 2)
        assert (await second).before is None
        again = await coordinator.join(_who("worker", 1, pid=13))
        assert again.before is not None
        assert again.before.pid == 11
        assert await coordinator.starts() == {"server-0": 1, "worker-0": 1, "worker-1": 2}

    asyncio.run(scenario())


def test_news_bring_new_addresses_and_ignore_a_replaced_process() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(_plan())
        old = _who("server", 0, pid=12)
        await coordinator.present(old)
        news = await coordinator.news((0.0, 0))
        assert news.addresses == {"server-0": "127.0.0.1:12"}
        waiting = asyncio.create_task(coordinator.news(news.version))
        await asyncio.sleep(0)
        await coordinator.present(_who("server", 0, pid=14, node="node-b"))
        assert (await waiting).addresses == {"server-0": "127.0.0.1:14"}
        late = await coordinator.news((0.0, 0), old)
        assert late.addresses == {"server-0": "127.0.0.1:14"}

    asyncio.run(scenario())


def test_a_restarted_coordinator_learns_everything_again() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(_plan())
        await coordinator.news((0.0, 0), _who("server", 0, pid=12, is_serving=True))
        before = await coordinator.present(_who("server", 0, pid=13))
        assert before is not None
        assert before.is_serving

    asyncio.run(scenario())


def test_a_server_that_never_starts_ends_the_job() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(_plan())
        for _ in range(3):
            assert await coordinator.failure() == ""
            await coordinator.crashed("server-0", "OSError: no disk")
        assert await coordinator.failure() == "server-0 failed 3 times in a row: OSError: no disk"

    asyncio.run(scenario())


def test_workers_do_not_wait_for_a_server_that_cannot_be_made() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(_plan())
        joins = [coordinator.join(_who("worker", rank, pid=10 + rank)) for rank in (0, 1)]
        waiting = [asyncio.create_task(each) for each in joins]
        await asyncio.sleep(0)
        await coordinator.fail("server 0 is lost: no module named sparsefleet on its node")
        for each in waiting:
            with pytest.raises(PeerLostError, match="no module named sparsefleet"):
                await asyncio.wait_for(each, 10)

    asyncio.run(scenario())


def test_the_state_of_a_job_is_written_when_all_servers_serve(tmp_path: Path) -> None:
    path = tmp_path / "state.json"

    async def scenario() -> None:
        coordinator = Coordinator(_plan(state_file=str(path), attempt=2))
        who = _who("server", 0, pid=12)
        await coordinator.present(who)
        assert not path.exists()
        await coordinator.news((0.0, 0), dataclasses.replace(who, is_serving=True))
        for rank in (0, 1):  # workers join when the servers are serving
            at = _who("worker", rank, checkpoint="run/checkpoint_1")
            await coordinator.news((0.0, 0), at)

    asyncio.run(scenario())
    state = json.loads(path.read_text())
    assert state["checkpoint"] == "run/checkpoint_1"
    assert state["attempt"] == 2
    assert state["server_nodes"] == {"server-0": "node-a"}
    assert "k" * 16 not in path.read_text()


def test_a_loop_that_would_begin_again_is_not_continued(tmp_path: Path) -> None:
    """Its data would be trained twice, since the servers keep the updates of the first time."""
    path = tmp_path / "state.json"
    script = ScriptPlan(script="train.py", directory=".")
    plan = _plan(state_file=str(path), script=script)
    assert continued(plan) == plan

    async def scenario() -> None:
        coordinator = Coordinator(plan)
        who = _who("worker", 1, pid=10)
        await coordinator.news((0.0, 0), _who("server", 0, pid=12, is_serving=True))
        await coordinator.news((0.0, 0), who)
        assert continued(plan).attempt == 1
        await coordinator.news((0.0, 0), dataclasses.replace(who, has_own_loop=True))

    asyncio.run(scenario())
    with pytest.raises(ConfigError, match=r"worker-1 trained in a custom loop"):
        continued(plan)
    agreed = dataclasses.replace(plan, script=dataclasses.replace(script, restart="killed"))
    assert continued(agreed).attempt == 1


def test_a_damaged_state_of_a_job_is_named(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for text in ("", "[]", '{"job_id": "3f"}'):
        path.write_text(text)
        with pytest.raises(
            ConfigError, match=r"state\.json, which the run 'test' continues from, is damaged"
        ):
            continued(_plan(state_file=str(path)))


def test_workers_without_servers_meet_anew_after_each_start() -> None:
    async def scenario() -> None:
        coordinator = Coordinator(dataclasses.replace(_plan(), servers=Servers(0)))
        for rank in (0, 1):
            await coordinator.news((0.0, 0), _who("worker", rank, pid=10 + rank))
        early = asyncio.create_task(coordinator.join(_who("worker", 1, pid=21, start=1)))
        await asyncio.sleep(0)
        assert not early.done()
        await coordinator.join(_who("worker", 0, pid=20, start=1))
        assert (await early).meeting_point == "127.0.0.1:20"

    asyncio.run(scenario())
