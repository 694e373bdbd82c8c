from __future__ import annotations

import argparse

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.paddle.distributed import launch
from sparsefleet.fluid.paddle.distributed.launch import cluster_from_cloud
from sparsefleet.launch.job_plan import fixed_meeting_point, link_port, plan_node

CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.7,10.0.0.8",
    "POD_IP": "10.0.0.8",
    "PADDLE_TRAINER_ID": "1",
    "TRAINER_PORTS_NUM": "2",
    "PADDLE_TRAINERS_NUM": "2",
}


def options(*words: str) -> argparse.Namespace:
    return launch._make_parser().parse_args([*words, __file__])


def test_ranks_and_ports_go_node_by_node() -> None:
    words = ("--cluster_node_ips", "10.0.0.7,10.0.0.8", "--node_ip", "10.0.0.8")
    config = launch._config(options(*words, "--selected_gpus", "0,1"), {}, "logs")
    assert config.paddle is not None
    assert config.paddle.endpoints == (
        *("10.0.0.7:6070", "10.0.0.7:6071"),
        *("10.0.0.8:6070", "10.0.0.8:6071"),
    )
    assert (link_port(config), fixed_meeting_point(config)) == (6072, "10.0.0.7:6070")
    plans = plan_node(config, [], fixed_meeting_point(config))
    assert [plan.variables["PADDLE_TRAINER_ID"] for plan in plans] == ["2", "3"]
    assert [plan.variables["FLAGS_selected_gpus"] for plan in plans] == ["0", "1"]
    assert plans[0].variables["PADDLE_CURRENT_ENDPOINT"] == "10.0.0.8:6070"
    assert [plan.log_path for plan in plans] == ["logs/workerlog.0", "logs/workerlog.1"]


@pytest.mark.parametrize(
    ("changed", "port", "first"),
    [
        ({}, None, "10.0.0.7:6170"),
        ({}, 7000, "10.0.0.7:7000"),
        ({"PADDLE_PORT": "8000"}, 7000, "10.0.0.7:8000"),
        ({"PADDLE_PORT": "8000", "TRAINER_PORTS_NUM": "1"}, 7000, "10.0.0.7:7000"),
        ({"DISTRIBUTED_TRAINER_ENDPOINTS": "a:1,a:2,b:1,b:2"}, 7000, "a:1"),
    ],
)
def test_schedulers_variables_say_where_processes_are(
    changed: dict[str, str], port: int | None, first: str
) -> None:
    cluster = cluster_from_cloud({**CLOUD, **changed}, port, 2)
    assert cluster.node_rank == 1
    assert cluster.endpoints[0] == first
    assert len(cluster.endpoints) == 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"PADDLE_TRAINERS": ""}, "PADDLE_TRAINERS is not set, but --use_paddlecloud needs it"),
        ({"POD_IP": "10.0.0.9"}, "POD_IP must be 10.0.0.7 or 10.0.0.8, got '10.0.0.9'"),
        ({"PADDLE_TRAINER_ID": "2"}, "PADDLE_TRAINER_ID must be less than 2"),
        ({"TRAINER_PORTS_NUM": "many"}, "TRAINER_PORTS_NUM must be an integer"),
        (
            {"DISTRIBUTED_TRAINER_ENDPOINTS": "a:1,b:1"},
            r"must be a list of TRAINER_PORTS_NUM \(2\) endpoints for",
        ),
    ],
)
def test_wrong_variable_of_the_scheduler_is_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_from_cloud({**CLOUD, **changed}, None, 2)


@pytest.mark.parametrize(
    ("words", "environ", "message"),
    [
        (("--selected_gpus", "a"), {}, "--selected_gpus must be numbers"),
        (
            ("--selected_gpus", "1"),
            {"CUDA_VISIBLE_DEVICES": "0"},
            "contains 1, which is not in CUDA_VISIBLE",
        ),
        (
            ("--selected_gpus", "0", "--cluster_node_ips", "127.0.0.1,127.0.0.1"),
            {},
            "duplicate machine",
        ),
    ],
)
def test_wrong_flag_is_named(words: tuple[str, ...], environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        launch._config(options(*words), environ, "logs")
