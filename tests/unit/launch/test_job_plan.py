from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from sparsefleet.launch import LaunchConfig
from sparsefleet.launch.job_plan import (
    child_environment,
    deal,
    fixed_endpoints,
    fixed_meeting_point,
    fixed_replicas,
    is_traffic_exposed,
    link_port,
    plan_node,
)


def config(**fields: Any) -> LaunchConfig:
    return LaunchConfig(**{"script": "train", "is_module": True, **fields})


@pytest.mark.parametrize("count", range(8))
@pytest.mark.parametrize("num_nodes", range(1, 5))
def test_dealing_is_contiguous_complete_and_even(count: int, num_nodes: int) -> None:
    parts = deal(count, num_nodes)
    assert [index for part in parts for index in part] == list(range(count))
    sizes = [len(part) for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_endpoints_follow_the_nodes() -> None:
    assert fixed_endpoints(config(num_servers=2)) == []
    assert fixed_endpoints(config(num_servers=2, start_port=9100)) == [
        "127.0.0.1:9100",
        "127.0.0.1:9101",
    ]
    two = config(num_servers=3, start_port=9100, nodes=("host1", "host2"))
    assert fixed_endpoints(two) == ["host1:9100", "host1:9101", "host2:9100"]
    assert link_port(two) == 9102
    same = config(num_servers=3, start_port=9100, nodes=("a", "a"))
    assert fixed_endpoints(same) == ["a:9100", "a:9101", "a:9102"]
    assert link_port(same) == 9103
    v6 = config(start_port=9100, nodes=("[fd00::1]",))
    assert fixed_endpoints(v6) == ["[fd00::1]:9100"]


def test_each_node_gets_its_part() -> None:
    plans = []
    for rank in range(2):
        job = config(num_servers=3, num_workers=3, start_port=1, nodes=("a", "b"), node_rank=rank)
        plans.append([plan.name for plan in plan_node(job, fixed_endpoints(job))])
    assert plans == [
        ["server 0", "server 1", "worker 0", "worker 1"],
        ["server 2", "worker 2"],
    ]


def test_commands_of_servers_and_workers() -> None:
    job = config(arguments=("--lr", "1"), start_port=9100)
    server, worker = plan_node(job, fixed_endpoints(job))
    assert server.command == worker.command
    assert worker.command == (sys.executable, "-u", "-m", "train", "--lr", "1")
    native = config(native_servers=True, start_port=9100, transport="plain")
    server, worker = plan_node(native, fixed_endpoints(native))
    assert server.command[3:5] == ("sparsefleet", "server")
    assert server.command[-1] == "plain"
    assert worker.command[-1] == "train"


def test_processes_learn_their_incarnation_and_how_long_to_wait_for_a_server() -> None:
    durable = config(start_port=9100, durability="process")
    worker = plan_node(durable, fixed_endpoints(durable))[1]
    outer = {"SPARSEFLEET_INCARNATION": "7"}
    told = child_environment(outer, durable, {}, worker)
    assert told["SPARSEFLEET_INCARNATION"] == "0"
    assert told["SPARSEFLEET_FAILOVER_WAIT_S"] == "60"
    again = child_environment({}, durable, {}, replace(worker, incarnation=2))
    assert again["SPARSEFLEET_INCARNATION"] == "2"
    chosen = child_environment({"SPARSEFLEET_FAILOVER_WAIT_S": "5"}, durable, {}, worker)
    assert chosen["SPARSEFLEET_FAILOVER_WAIT_S"] == "5"
    for lost in (config(start_port=9100, durability="off"), config(num_servers=0)):
        plan = plan_node(lost, fixed_endpoints(lost))[-1]
        assert "SPARSEFLEET_FAILOVER_WAIT_S" not in child_environment({}, lost, {}, plan)


def test_environment_drops_roles_of_an_outer_job() -> None:
    job = config(start_port=9100, set_variables=(("A", "1"),), unset_variables=("http_proxy",))
    worker = plan_node(job, fixed_endpoints(job))[1]
    inherited = {"POD_IP": "x", "PADDLE_PORT": "1", "http_proxy": "y", "HOME": "/root"}
    told = child_environment(inherited, job, {"KEY": "k"}, worker)
    assert "POD_IP" not in told
    assert "http_proxy" not in told
    assert (told["HOME"], told["A"], told["KEY"]) == ("/root", "1", "k")
    assert told["SPARSEFLEET_ROLE"] == "worker"


def test_workers_get_their_meeting_point_and_node_size() -> None:
    job = config(num_servers=0, num_workers=4, start_port=9100, nodes=("a", "b"), node_rank=1)
    assert fixed_meeting_point(job) == "a:9101", "after the port of the launchers"
    plans = plan_node(job, [], fixed_meeting_point(job), restarts=2)
    assert [plan.name for plan in plans] == ["worker 2", "worker 3"]
    told = plans[0].variables
    assert told["SPARSEFLEET_MEETING_POINT"] == "a:9101"
    assert told["SPARSEFLEET_WORKERS_PER_NODE"] == told["SPARSEFLEET_RESTARTS"] == "2"
    assert told["SPARSEFLEET_SERVERS"] == ""
    assert plans[0].appends_log, "the log of the start before is kept"
    assert fixed_meeting_point(config()) == "", "on one machine a free port is taken"


def test_traffic_between_machines_is_exposed_unless_protection_was_chosen() -> None:
    ranks: dict[str, Any] = {"num_servers": 0, "num_workers": 2, "start_port": 9100}
    two = config(**ranks, nodes=("host1", "host2"))
    assert is_traffic_exposed(two, {})
    assert is_traffic_exposed(two, {"GLOO_DEVICE_TRANSPORT": "TCP"})
    assert not is_traffic_exposed(two, {"GLOO_SOCKET_IFNAME": "wg0"})
    assert not is_traffic_exposed(two, {"GLOO_DEVICE_TRANSPORT": "TCP_TLS"})
    tls = (("GLOO_DEVICE_TRANSPORT", "TCP_TLS"),)
    assert not is_traffic_exposed(config(**ranks, nodes=two.nodes, set_variables=tls), {})
    assert not is_traffic_exposed(config(num_servers=0, num_workers=2), {})
    assert not is_traffic_exposed(config(**ranks, nodes=("127.0.0.1", "localhost")), {})
    assert not is_traffic_exposed(config(**{**ranks, "num_servers": 1}, nodes=two.nodes), {})


def test_settings_of_gloo_reach_the_workers() -> None:
    exported = {
        "GLOO_DEVICE_TRANSPORT": "TCP_TLS",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_PKEY": "/keys/rank.key",
        "GLOO_DEVICE_TRANSPORT_TCP_TLS_CERT": "/keys/rank.crt",
    }
    flags = (("GLOO_DEVICE_TRANSPORT_TCP_TLS_CA_FILE", "/keys/ca.crt"),)
    job = config(num_servers=0, num_workers=2, set_variables=flags)
    for plan in plan_node(job, [], "127.0.0.1:9100"):
        environment = child_environment(exported, job, {}, plan)
        assert {**exported, **dict(flags)}.items() <= environment.items()


def test_each_node_runs_the_replica_of_the_servers_before_it() -> None:
    told = []
    for rank in range(2):
        job = config(
            num_servers=3,
            start_port=9100,
            nodes=("a", "b"),
            node_rank=rank,
            durability="replica",
        )
        replicas = fixed_replicas(job)
        assert replicas == ["a:9104", "b:9103"]
        first, *others = plan_node(job, fixed_endpoints(job), replicas=replicas)
        assert (first.name, first.endpoint) == (f"replica {rank}", replicas[rank])
        assert "replica" in first.command
        told += [plan.variables["SPARSEFLEET_REPLICAS"] for plan in others]
    assert set(told) == {"b:9103,b:9103,a:9104"}


def test_without_replicas_no_process_is_added() -> None:
    job = config(num_servers=2, durability="process", start_port=9100)
    assert [plan.role for plan in plan_node(job, fixed_endpoints(job))] == [
        "server",
        "server",
        "worker",
    ]
