from __future__ import annotations

import dataclasses

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fleet import RoleInfo, join_world, role_from_environment
from sparsefleet.fleet.roles import split_files

SERVERS = "10.0.0.7:9100,10.0.0.8:9100"
OURS = {
    "SPARSEFLEET_ROLE": "worker",
    "SPARSEFLEET_SERVERS": SERVERS,
    "SPARSEFLEET_WORKERS": "3",
    "SPARSEFLEET_INDEX": "2",
}
PADDLE_WORKER = {
    "TRAINING_ROLE": "TRAINER",
    "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS,
    "PADDLE_TRAINERS_NUM": "3",
    "PADDLE_TRAINER_ID": "1",
}
PADDLE_SERVER = {
    "TRAINING_ROLE": "PSERVER",
    "PADDLE_PSERVERS_IP_PORT_LIST": SERVERS,
    "PADDLE_TRAINERS_NUM": "3",
    "POD_IP": "10.0.0.8",
    "PADDLE_PORT": "9100",
}
COLLECTIVE = {
    "PADDLE_TRAINER_ID": "1",
    "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:6170,127.0.0.1:6171",
    "PADDLE_CURRENT_ENDPOINT": "127.0.0.1:6171",
}


def test_empty_environment_is_local_and_its_own_first_worker() -> None:
    role = role_from_environment({"PATH": "/bin", "TRAINING_ROLE": ""})
    assert role == RoleInfo(kind="local")
    assert (role.is_worker, role.is_server, role.is_first_worker) == (True, False, True)
    assert (role.worker_num, role.server_num) == (1, 0)


def test_our_variables_make_a_worker_or_server() -> None:
    worker = role_from_environment(OURS)
    assert worker.is_worker
    assert (worker.index, worker.worker_num, worker.server_num) == (2, 3, 2)
    server = role_from_environment({**OURS, "SPARSEFLEET_ROLE": "server", "SPARSEFLEET_INDEX": "1"})
    assert server.is_server
    assert server.current_endpoint == "10.0.0.8:9100"
    assert not server.is_first_worker


def test_paddle_variables_make_a_worker_or_server() -> None:
    worker = role_from_environment(PADDLE_WORKER)
    assert (worker.kind, worker.index, worker.worker_num) == ("worker", 1, 3)
    assert worker.server_endpoints == ("10.0.0.7:9100", "10.0.0.8:9100")
    server = role_from_environment(PADDLE_SERVER)
    assert (server.kind, server.index, server.worker_num) == ("server", 1, 3)


def test_our_variables_win_over_paddles() -> None:
    assert role_from_environment({**PADDLE_SERVER, **OURS}).index == 2


def test_torchruns_variables_count_in_collective_jobs_only() -> None:
    variables = {"RANK": "1", "WORLD_SIZE": "4"}
    assert role_from_environment(variables).kind == "local"
    role = role_from_environment(variables, is_collective=True)
    assert (role.kind, role.index, role.worker_num) == ("worker", 1, 4)


def test_paddles_collective_variables_make_a_worker() -> None:
    role = role_from_environment(COLLECTIVE, is_collective=True)
    assert role.is_worker
    assert (role.index, role.worker_num) == (1, 2)
    assert role.current_endpoint == "127.0.0.1:6171"
    alone = {"PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:6170"}
    assert role_from_environment(alone, is_collective=True).is_first_worker
    assert role_from_environment({}, is_collective=True).kind == "local"


@pytest.mark.parametrize("family", [OURS, PADDLE_WORKER, PADDLE_SERVER])
def test_each_missing_variable_is_named(family: dict[str, str]) -> None:
    for missing in family:
        rest = {name: text for name, text in family.items() if name != missing}
        with pytest.raises(ConfigError, match=rf"^{missing} is not set"):
            role_from_environment(rest)


@pytest.mark.parametrize(
    ("family", "changed", "message"),
    [
        (OURS, {"SPARSEFLEET_ROLE": "boss"}, "SPARSEFLEET_ROLE must be worker or server, got"),
        (OURS, {"SPARSEFLEET_WORKERS": "0"}, "SPARSEFLEET_WORKERS must be an integer >= 1"),
        (OURS, {"SPARSEFLEET_INDEX": "3"}, r"INDEX must be less than 3 \(SPARSEFLEET_WORKERS\)"),
        (OURS, {"SPARSEFLEET_INDEX": "-1"}, "SPARSEFLEET_INDEX must be an integer >= 0"),
        (OURS, {"SPARSEFLEET_SERVERS": "a:1,a:1"}, "SPARSEFLEET_SERVERS: 'a:1' occurs twice"),
        (OURS, {"SPARSEFLEET_SERVERS": "a:1,"}, "SPARSEFLEET_SERVERS: endpoint '' must be"),
        (OURS, {"SPARSEFLEET_SERVERS": "a:0"}, "'a:0' has port 0"),
        (PADDLE_WORKER, {"TRAINING_ROLE": "trainer"}, "TRAINING_ROLE must be TRAINER or PSERVER"),
        (PADDLE_WORKER, {"PADDLE_TRAINERS_NUM": "two"}, "PADDLE_TRAINERS_NUM .* got 'two'"),
        (PADDLE_WORKER, {"PADDLE_TRAINERS_NUM": "²"}, "PADDLE_TRAINERS_NUM must be an integer"),
        (PADDLE_WORKER, {"PADDLE_TRAINER_ID": "3"}, "PADDLE_TRAINER_ID must be less than 3"),
        (PADDLE_WORKER, {"PADDLE_PSERVERS_IP_PORT_LIST": "here"}, "IP_PORT_LIST: endpoint 'here'"),
        (PADDLE_SERVER, {"PADDLE_PORT": "9101"}, "POD_IP:PADDLE_PORT is '10.0.0.8:9101'"),
        (PADDLE_SERVER, {"PADDLE_PORT": "high"}, "PADDLE_PORT must be an integer >= 1"),
    ],
)
def test_wrong_variable_is_named_with_what_was_found(
    family: dict[str, str], changed: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        role_from_environment({**family, **changed})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"PADDLE_TRAINER_ENDPOINTS": ""}, "PADDLE_TRAINER_ENDPOINTS is not set"),
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID must be less than 2"),
        ({"PADDLE_TRAINING_ROLE": "PSERVER"}, "PADDLE_TRAINING_ROLE must be TRAINER"),
        ({"PADDLE_CURRENT_ENDPOINT": "b:1"}, "PADDLE_CURRENT_ENDPOINT must be one of"),
    ],
)
def test_wrong_collective_variable_is_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        role_from_environment({**COLLECTIVE, **changed}, is_collective=True)


def test_collective_roles_know_where_workers_meet() -> None:
    ours = {
        "SPARSEFLEET_ROLE": "worker",
        "SPARSEFLEET_INDEX": "3",
        "SPARSEFLEET_WORKERS": "4",
        "SPARSEFLEET_MEETING_POINT": "10.0.0.7:9101",
        "SPARSEFLEET_WORKERS_PER_NODE": "2",
        "SPARSEFLEET_RESTARTS": "1",
    }
    for is_collective in (False, True):
        role = role_from_environment(ours, is_collective=is_collective)
        assert (role.index, role.server_num, role.meeting_point) == (3, 0, "10.0.0.7:9101")
        assert (role.workers_per_node, role.restarts, role.gpu) == (2, 1, None)
    with_servers = {**ours, "SPARSEFLEET_SERVERS": "10.0.0.7:9100"}
    assert role_from_environment(with_servers, is_collective=True).server_num == 1

    paddle = role_from_environment({**COLLECTIVE, "FLAGS_selected_gpus": "1"}, is_collective=True)
    assert (paddle.meeting_point, paddle.workers_per_node) == (paddle.worker_endpoints[0], 2)
    assert paddle.gpu == 1

    torchrun = {
        "RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.7",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
    }
    role = role_from_environment(torchrun, is_collective=True)
    assert (role.meeting_point, role.is_meeting_kept_elsewhere) == ("10.0.0.7:29500", True)
    assert (role.workers_per_node, role.restarts) == (2, 2)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"PADDLE_TRAINER_ENDPOINTS": "a:1,b:1,a:2", "PADDLE_TRAINER_ID": "0"},
            "worker endpoints on a must be adjacent",
        ),
        (
            {**COLLECTIVE, "FLAGS_selected_gpus": "x"},
            "FLAGS_selected_gpus must be comma-separated GPU numbers",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"},
            "MASTER_PORT is not set, but torchrun",
        ),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "3"},
            "LOCAL_WORLD_SIZE must be less",
        ),
    ],
)
def test_places_of_workers_that_cannot_be_are_named(
    variables: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        role_from_environment(variables, is_collective=True)


def test_workers_without_a_meeting_point_get_advice() -> None:
    role = role_from_environment({"RANK": "0", "WORLD_SIZE": "2"}, is_collective=True)
    with pytest.raises(ConfigError, match="worker 0 of 2 has no meeting point"):
        join_world(role)
    server = RoleInfo(kind="server", server_endpoints=("a:1",))
    with pytest.raises(ConfigError, match="server 0 cannot join"):
        join_world(server)


def test_torchrun_needs_both_variables() -> None:
    with pytest.raises(ConfigError, match="WORLD_SIZE is not set"):
        role_from_environment({"RANK": "0"}, is_collective=True)


@pytest.mark.parametrize(
    ("count", "workers", "wanted"),
    [
        (5, 2, [["0", "1", "2"], ["3", "4"]]),
        (4, 2, [["0", "1"], ["2", "3"]]),
        (2, 3, [["0"], ["1"], []]),
        (0, 2, [[], []]),
    ],
)
def test_files_are_split_in_contiguous_parts(
    count: int, workers: int, wanted: list[list[str]]
) -> None:
    files = [str(index) for index in range(count)]
    for index in range(workers):
        role = RoleInfo(kind="worker", index=index, worker_num=workers)
        assert split_files(files, role) == wanted[index]


def test_files_must_be_a_list() -> None:
    with pytest.raises(TypeError, match="list of str, got str"):
        split_files("part-0", RoleInfo(kind="local"))  # type: ignore[arg-type]


def test_role_info_is_frozen_and_checked() -> None:
    role = RoleInfo(kind="local")
    with pytest.raises(dataclasses.FrozenInstanceError):
        role.index = 1  # type: ignore[misc]
    with pytest.raises(ConfigError, match=r"RoleInfo\.kind must be 'worker'"):
        RoleInfo(kind="boss")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"less than the number of servers \(1\), got 1"):
        RoleInfo(kind="server", index=1, server_endpoints=("a:1",))
    with pytest.raises(ConfigError, match="without duplicates"):
        RoleInfo(kind="worker", server_endpoints=("a:1", "a:1"))
