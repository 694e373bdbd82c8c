"""Roles that Slurm, JobSet and torchrun describe with their own variables."""

from __future__ import annotations

import pytest

from sparsefleet import Trainer, nn, optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import role_from_environment
from sparsefleet.fleet.fleet import Fleet
from sparsefleet.fleet.incarnation import Incarnation
from sparsefleet.fleet.schedulers import expand_counts, expand_nodes
from sparsefleet.job_id import job_id

# The variables that Slurm 22.05 sets for three servers on two nodes and four workers on two others.
SLURM = {
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "18",
    "SLURM_JOB_ID_HET_GROUP_0": "17",
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_NODELIST_HET_GROUP_0": "big[1-2]",
    "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[07-08]",
    "SLURM_TASKS_PER_NODE_HET_GROUP_0": "2,1",
    "SLURM_TASKS_PER_NODE_HET_GROUP_1": "2(x2)",
}
SERVERS = ("big1:9100", "big1:9101", "big2:9100")


def task(node: str, local: int, tasks: int, **more: str) -> dict[str, str]:
    own = {"SLURMD_NODENAME": node, "SLURM_LOCALID": str(local), "SLURM_STEP_NUM_TASKS": str(tasks)}
    return {**SLURM, **own, **more}


def test_tasks_of_a_heterogeneous_slurm_job_know_role_index_and_servers() -> None:
    third = role_from_environment(task("big2", 0, 3))
    assert (third.kind, third.index, third.worker_num) == ("server", 2, 4)
    assert third.server_endpoints == SERVERS
    assert third.current_endpoint == "big2:9100"
    last = role_from_environment(task("cpu08", 1, 4))
    assert (last.kind, last.index, last.worker_num) == ("worker", 3, 4)
    assert last.server_endpoints == SERVERS
    assert (last.meeting_point, last.workers_per_node) == ("cpu07:9100", 2)


def test_one_srun_for_both_components_gives_the_same_roles() -> None:
    role = role_from_environment(task("cpu07", 1, 7, SLURM_PROCID="4"))
    assert (role.kind, role.index) == ("worker", 1)


def test_port_of_slurm_servers_can_be_chosen() -> None:
    role = role_from_environment(task("cpu07", 0, 4, SPARSEFLEET_PORT="5000"))
    assert role.server_endpoints[1] == "big1:5001"


def test_own_variables_win_over_slurms() -> None:
    ours = {"SPARSEFLEET_ROLE": "worker", "SPARSEFLEET_INDEX": "0", "SPARSEFLEET_WORKERS": "1"}
    role = role_from_environment(task("big1", 0, 3, SPARSEFLEET_SERVERS="here:1", **ours))
    assert (role.kind, role.server_endpoints) == ("worker", ("here:1",))


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (task("cpu07", 0, 3), "this step has 3 tasks, but its part of the job was allocated 4"),
        (task("other", 0, 4), "'other' is in none of the job's components"),
        (task("cpu07", 2, 4), "SLURM_LOCALID must be less than 2 .tasks on cpu07."),
        (task("cpu07", 0, 4, SLURM_HET_SIZE="3"), "SLURM_HET_SIZE is 3: expected 2 components"),
        (task("cpu07", 0, 4, SLURM_HET_SIZE="two"), "SLURM_HET_SIZE must be an integer >= 0"),
        (task("cpu07", 0, 4, SPARSEFLEET_PORT="0"), "SPARSEFLEET_PORT must be an integer >= 1"),
        (
            task("cpu07", 0, 4, SLURM_JOB_NODELIST_HET_GROUP_0=""),
            "HET_GROUP_0 is not set, but SLURM_STEP_ID is",
        ),
        (task("big1", 0, 3, SLURM_JOB_NODELIST_HET_GROUP_1="big[1-2]"), "'big1' is in both compon"),
        (
            task("big1", 0, 3, SLURM_JOB_NODELIST_HET_GROUP_1="x"),
            "one count for each of the nodes",
        ),
    ],
)
def test_slurm_variables_without_a_role_are_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        role_from_environment(variables)


PLAIN_STEP = {
    "SLURM_STEP_ID": "1",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURMD_NODENAME": "n2",
    "SLURM_LOCALID": "0",
}


def test_plain_slurm_step_is_a_collective_job_or_workers_of_named_servers() -> None:
    assert role_from_environment(PLAIN_STEP).kind == "local"
    rank = role_from_environment(PLAIN_STEP, is_collective=True)
    assert (rank.index, rank.worker_num, rank.meeting_point) == (2, 4, "n1:9100")
    worker = role_from_environment({**PLAIN_STEP, "SPARSEFLEET_SERVERS": "s:1"})
    assert (worker.kind, worker.index, worker.server_endpoints) == ("worker", 2, ("s:1",))


def test_step_of_one_task_and_a_shell_in_an_allocation_are_alone() -> None:
    one = {**PLAIN_STEP, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "n2"}
    assert role_from_environment(one, is_collective=True).kind == "local"
    shell = {name: text for name, text in SLURM.items() if name != "SLURM_STEP_ID"}
    assert role_from_environment(shell).kind == "local"


JOBSET = {
    "JOBSET_NAME": "ads",
    "JOBSET_UID": "6f",
    "REPLICATED_JOB_NAME": "servers",
    "JOB_COMPLETION_INDEX": "1",
    "SPARSEFLEET_NUM_SERVERS": "2",
    "SPARSEFLEET_WORKERS": "3",
    "HOSTNAME": "ads-servers-0-1",
}


def test_pods_of_a_jobset_know_role_index_and_servers() -> None:
    server = role_from_environment(JOBSET)
    assert (server.kind, server.index, server.worker_num) == ("server", 1, 3)
    assert server.server_endpoints == ("ads-servers-0-0.ads:9100", "ads-servers-0-1.ads:9100")
    assert server.current_endpoint == "ads-servers-0-1:9100"
    for name in ("workers", "node"):
        worker = role_from_environment({**JOBSET, "REPLICATED_JOB_NAME": name})
        assert (worker.kind, worker.index, worker.worker_num) == ("worker", 1, 3)
        assert worker.meeting_point == f"ads-{name}-0-0.ads:9101"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"REPLICATED_JOB_NAME": "driver"},
            "REPLICATED_JOB_NAME is 'driver', which is not a known",
        ),
        ({"REPLICATED_JOB_NAME": ""}, "REPLICATED_JOB_NAME is not set, but JOBSET_NAME is"),
        ({"JOB_COMPLETION_INDEX": ""}, "JOB_COMPLETION_INDEX is not set"),
        ({"JOB_COMPLETION_INDEX": "2"}, "SPARSEFLEET_INDEX must be less than 2"),
        ({"SPARSEFLEET_NUM_SERVERS": ""}, "SPARSEFLEET_SERVERS is not set"),
        ({"SPARSEFLEET_WORKERS": ""}, "SPARSEFLEET_WORKERS is not set"),
    ],
)
def test_wrong_jobset_variable_is_named(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        role_from_environment({**JOBSET, **changed})


TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}


def test_torchruns_processes_are_workers_of_named_servers() -> None:
    role = role_from_environment({**TORCHRUN, "SPARSEFLEET_SERVERS": "s:1,s:2"})
    assert (role.kind, role.index, role.worker_num, role.server_num) == ("worker", 1, 4, 2)


@pytest.mark.parametrize(
    ("variables", "starter"), [(TORCHRUN, "torchrun"), (PLAIN_STEP, "srun")], ids=["torch", "slurm"]
)
def test_several_processes_without_servers_are_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], starter: str
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(
        ConfigError, match=f"{starter} has started 4 processes but .* SPARSEFLEET_S"
    ):
        Trainer(nn.SparseEmbedding("t", 2), None, optim.SGD(lr=0.1), mode="async", fleet=Fleet())
    Trainer(nn.SparseEmbedding("t", 2), None, optim.SGD(lr=0.1), mode="local", fleet=Fleet())


def test_node_lists_and_counts_expand() -> None:
    assert expand_nodes("r[1-2]n[3,5]x") == ["r1n3x", "r1n5x", "r2n3x", "r2n5x"]
    assert expand_nodes("127.0.0.[9-10]") == ["127.0.0.9", "127.0.0.10"]
    assert expand_counts("1") == [1]


@pytest.mark.parametrize("text", ["", "a[", "a[1-", "a[2-1]", "a[x]", "a]b[", "a[1-999999999]"])
def test_broken_node_lists_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="Slurm node list"):
        expand_nodes(text)


@pytest.mark.parametrize("text", ["", "two", "2(x", "2(3)", "-1"])
def test_broken_counts_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="Slurm's tasks per node"):
        expand_counts(text)


def test_job_has_the_same_identity_in_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert job_id(task("big1", 0, 3)) == "slurm-17.0"
    assert job_id(JOBSET) == "jobset-6f"
    assert job_id(TORCHRUN) == ""
    for name in ("SPARSEFLEET_JOB_ID", "SPARSEFLEET_INCARNATION"):
        monkeypatch.delenv(name, raising=False)
    assert not Incarnation.from_environment().is_replaceable
    monkeypatch.setenv("SPARSEFLEET_JOB_ID", "slurm-17")
    found = Incarnation.from_environment()
    assert found.is_successor
    assert not found.is_counted  # so the servers are asked
    monkeypatch.setenv("SPARSEFLEET_INCARNATION", "0")
    assert not Incarnation.from_environment().is_successor
