from __future__ import annotations

from typing import Any

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)

SERVERS = ["127.0.0.1:6170", "127.0.0.1:6171"]
WORKER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(SERVERS),
    "PADDLE_TRAINERS_NUM": "2",
    "PADDLE_TRAINER_ID": "1",
}


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)


def test_environment_is_read_at_first_use_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    role = PaddleCloudRoleMaker()
    set_all(monkeypatch, WORKER)
    role.generate_role()
    monkeypatch.setenv("PADDLE_TRAINER_ID", "0")
    role.generate_role()
    assert role.worker_index() == 1
    assert role.is_worker()
    assert not role.is_first_worker()
    assert (role.worker_num(), role.server_num()) == (2, 2)
    assert role.get_pserver_endpoints() == SERVERS


def test_indexes_are_one_number_whichever_the_role(monkeypatch: pytest.MonkeyPatch) -> None:
    server = {"TRAINING_ROLE": "PSERVER", "POD_IP": "127.0.0.1", "PADDLE_PORT": "6171"}
    set_all(monkeypatch, {**WORKER, **server})
    role = PaddleCloudRoleMaker()
    assert role.is_server()
    assert role.server_index() == role.worker_index() == role.role_id() == 1


def test_missing_variable_is_a_value_error_naming_it(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**WORKER, "PADDLE_TRAINERS_NUM": ""})
    with pytest.raises(ValueError, match="PADDLE_TRAINERS_NUM is not set"):
        PaddleCloudRoleMaker().generate_role()


def test_without_environment_the_process_is_local() -> None:
    role = PaddleCloudRoleMaker()
    assert role.info.kind == "local"
    assert role.is_first_worker()
    assert role.worker_num() == 1


def test_collective_process_is_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PADDLE_TRAINER_ENDPOINTS", ",".join(SERVERS))
    role = PaddleCloudRoleMaker(is_collective=True)
    assert role.is_worker()
    assert role.get_trainer_endpoints() == SERVERS


def test_user_defined_roles() -> None:
    worker = UserDefinedRoleMaker(5, Role.WORKER, 2, SERVERS)
    assert worker.is_worker()
    assert worker.worker_index() == 5
    server = UserDefinedRoleMaker(
        current_id=1, role=Role.SERVER, worker_num=2, server_endpoints=SERVERS
    )
    assert server.is_server()
    assert server.info.current_endpoint == SERVERS[1]
    collective = UserDefinedCollectiveRoleMaker(1, SERVERS)
    assert collective.is_worker()
    assert collective.worker_num() == 2


@pytest.mark.parametrize(
    ("changed", "kind", "message"),
    [
        ({"server_endpoints": None}, TypeError, "server_endpoints must be a list"),
        ({"server_endpoints": ("a:1",)}, TypeError, "server_endpoints must be a list"),
        ({"server_endpoints": []}, ValueError, "at least one"),
        ({"server_endpoints": ["a:1", "a:1"]}, ValueError, "duplicate endpoints, got"),
        ({"server_endpoints": ["a:1", 2]}, TypeError, "only strings, got 2"),
        ({"server_endpoints": ["a"]}, ValueError, "HOST:PORT"),
        ({"role": 3}, TypeError, "Role.WORKER or Role.SERVER, got 3"),
        ({"role": True}, TypeError, "Role.WORKER or Role.SERVER, got True"),
        ({"role": "server"}, TypeError, "Role.WORKER or Role.SERVER"),
        ({"current_id": "0"}, TypeError, "current_id must be an int"),
        ({"current_id": -1}, ValueError, "current_id must be >= 0"),
        ({"current_id": 2, "role": Role.SERVER}, ValueError, "less than 2"),
        ({"worker_num": 1.5}, TypeError, "worker_num must be an int"),
        ({"worker_num": 0}, ValueError, "worker_num must be >= 1"),
    ],
)
def test_user_defined_role_is_checked_when_made(
    changed: dict[str, Any], kind: type[Exception], message: str
) -> None:
    good: dict[str, Any] = {"worker_num": 2, "server_endpoints": SERVERS}
    with pytest.raises(kind, match=message):
        UserDefinedRoleMaker(**{**good, **changed})


def test_user_defined_collective_role_is_checked_when_made() -> None:
    with pytest.raises(TypeError, match="worker_endpoints must be a list"):
        UserDefinedCollectiveRoleMaker(0)
    with pytest.raises(ConfigError, match="current_id must be less than 2"):
        UserDefinedCollectiveRoleMaker(2, SERVERS)


def test_general_role_gets_its_rank_from_the_id_or_the_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = {"PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002"}
    set_all(monkeypatch, {**WORKER, **workers, "SYS_JOB_ID": "job-7"})
    worker = GeneralRoleMaker(path="/tmp/rendezvous", init_timeout_seconds=60)
    assert worker.job_id == "job-7"
    assert worker.worker_num() == 3
    assert worker.info.current_endpoint == "127.0.0.1:7001"
    set_all(monkeypatch, {"TRAINING_ROLE": "PSERVER", "PADDLE_PSERVER_ID": "1"})
    assert GeneralRoleMaker().server_index() == 1
    monkeypatch.delenv("PADDLE_PSERVER_ID")
    set_all(monkeypatch, {"POD_IP": "127.0.0.1", "PADDLE_PORT": "6170"})
    assert GeneralRoleMaker().server_index() == 0
    monkeypatch.setenv("PADDLE_PORT", "1")
    with pytest.raises(ConfigError, match="set PADDLE_PSERVER_ID to the index"):
        GeneralRoleMaker().generate_role()


def test_general_role_names_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, WORKER)
    with pytest.raises(ConfigError, match="PADDLE_TRAINER_ENDPOINTS is not set"):
        GeneralRoleMaker().generate_role()
    with pytest.raises(ConfigError, match="did you mean 'hdfs_name'"):
        GeneralRoleMaker(hdfsname="afs://")


def test_role_numbers_are_fluids() -> None:
    assert (int(Role.WORKER), int(Role.SERVER)) == (1, 2)
