"""Modules next to Fluid's fleets: HDFS clients, readers, collective jobs of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.program_workers import feeds_of, ids_and_numbers

from sparsefleet import fluid
from sparsefleet.fluid.contrib.reader import distributed_batch_reader
from sparsefleet.fluid.contrib.utils import HDFSClient as OldClient
from sparsefleet.fluid.contrib.utils import multi_download, multi_upload
from sparsefleet.fluid.fleet import Role, UserDefinedCollectiveRoleMaker, UserDefinedRoleMaker
from sparsefleet.fluid.incubate.fleet.collective import (
    Collective,
    DistributedStrategy,
    TrainStatus,
)
from sparsefleet.fluid.incubate.fleet.parameter_server.pslib import PSLib, fleet_embedding
from sparsefleet.fluid.incubate.fleet.utils.fleet_util import FleetUtil
from sparsefleet.fluid.incubate.fleet.utils.hdfs import HDFSClient

# A replacement for hadoop, on local folders.
HADOOP = """#!/bin/sh
shift
while case "$1" in -D*) true;; *) false;; esac; do shift; done
case "$1" in
-test) test "$2" "$3";;
-cat) cat "$2";;
-mkdir) mkdir -p "$3";;
-rm) shift; rm "$@";;
-mv) mv "$2" "$3";;
-put|-get) cp -r "$2" "$3";;
-ls) case "$2" in
    -R) find "$3" -mindepth 1 ;;
    *) find "$2" -mindepth 1 -maxdepth 1 ;;
    esac | sort | while read -r name; do
        kind=-; test -d "$name" && kind=d
        echo "${kind}rw-r--r-- 1 me us 5 2020-01-01 10:00 $name"
    done;;
*) exit 1;;
esac
"""


@pytest.fixture
def hadoop(tmp_path: Path) -> str:
    home = tmp_path / "hadoop"
    (home / "bin").mkdir(parents=True)
    command = home / "bin" / "hadoop"
    command.write_text(HADOOP)
    command.chmod(0o755)
    return str(home)


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    folder = tmp_path / "remote"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (folder / name).write_text(f"text of {name}")
    return folder


def test_client_of_hdfs(hadoop: str, remote: Path, tmp_path: Path) -> None:
    client = HDFSClient(hadoop, {"fs.default.name": "hdfs://a:1", "hadoop.job.ugi": "me,us"})
    assert client.is_exist(str(remote))
    assert client.is_dir(str(remote))
    assert client.is_file(str(remote / "a"))
    assert client.cat(str(remote / "a")) == "text of a"
    assert client.ls(str(remote)) == [str(remote / name) for name in ("a", "b", "sub")]
    assert client.lsr(str(remote), excludes=["b"]) == [str(remote / "a"), str(remote / "sub/c")]
    assert client.ls(str(remote / "none")) == []
    assert client.download(str(remote / "sub"), str(tmp_path / "here"))
    assert (tmp_path / "here" / "c").read_text() == "text of sub/c"
    assert client.upload(str(remote / "up"), str(tmp_path / "here"))
    assert (remote / "up" / "c").exists()
    assert client.rename(str(remote / "a"), str(remote / "b"), overwrite=True)
    assert (remote / "b").read_text() == "text of a"
    assert client.delete(str(remote / "up"))
    assert not (remote / "up").exists()
    with pytest.raises(ValueError, match="expected an HDFS path"):
        client.is_exist()


def test_files_dealt_to_workers_by_hdfs(hadoop: str, remote: Path, tmp_path: Path) -> None:
    client = OldClient(hadoop, {})
    found = multi_download(client, str(remote), str(tmp_path / "mine"), 0, 2)
    assert found == [str(tmp_path / "mine" / "a"), str(tmp_path / "mine" / "sub" / "c")]
    assert Path(found[1]).read_text() == "text of sub/c"
    multi_upload(client, str(tmp_path / "back"), str(tmp_path / "mine"))
    assert (tmp_path / "back" / "sub" / "c").exists()


def test_batches_dealt_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def batches() -> Iterator[int]:
        yield from range(7)

    assert list(distributed_batch_reader(batches)()) == list(range(7))
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    assert list(distributed_batch_reader(batches)()) == [1, 3, 5]
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    with pytest.raises(ValueError, match=r"must be less than PADDLE_TRAINERS_NUM \(2\), got 2"):
        distributed_batch_reader(batches)


def test_a_collective_job_of_one_process_trains_and_continues(tmp_path: Path) -> None:
    fleet = Collective()
    fleet.init(UserDefinedCollectiveRoleMaker(0, ["127.0.0.1:9200"]))
    strategy = DistributedStrategy()
    strategy.nccl_comm_num = 2
    strategy.exec_strategy.num_threads = 3
    loss = ids_and_numbers()
    fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), strategy).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fleet.startup_program)
    first = exe.run(fleet.main_program, feeds_of(0, 1)[0], [loss])[0]
    assert fleet.load_check_point(exe, tmp_path, 0) is None
    for epoch in range(2):
        fleet.save_check_point(exe, tmp_path, TrainStatus(epoch), remain_all_checkpoint=False)
    saved = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    exe.run(fleet.main_program, feeds_of(0, 1)[0])
    assert fleet.load_check_point(exe, tmp_path, 0) == TrainStatus(1)
    again = np.array(fluid.global_scope().find_var("fc_0.w_0").get_tensor())
    np.testing.assert_array_equal(again, saved)
    assert len(list(tmp_path.iterdir())) == 1
    assert np.isfinite(first).all()


def test_settings_of_pslib_mean_async() -> None:
    fleet = PSLib()
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, ["127.0.0.1:9101"]))
    optimizer = fleet.distributed_optimizer(fluid.optimizer.SGD(0.1), {"use_cvm": True})
    assert optimizer.strategy.mode_name == "async"


def test_counts_of_an_auc_start_over() -> None:
    fluid.global_scope().var("counts").get_tensor().set(np.array([1, 2], np.int64))
    FleetUtil().set_zero("counts")
    assert np.array(fluid.global_scope().find_var("counts").get_tensor()).tolist() == [0, 0]
    with pytest.raises(ValueError, match="no variable 'other'"):
        FleetUtil().set_zero("other")


@pytest.mark.parametrize("client_class", [HDFSClient, OldClient])
def test_a_client_without_hadoop_reports_failed_commands(
    client_class: type[HDFSClient], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_class(str(tmp_path), {"fs.default.name": "hdfs://nowhere"})
    (tmp_path / "file").write_text("x")
    assert not client.is_exist("/there")
    assert client.ls("/there") == []
    assert not client.makedirs("/there")
    assert not client.upload("/there", str(tmp_path / "file"))
    assert "No such file" in caplog.text


def test_pslib_minimizes_the_losses_of_several_programs() -> None:
    fleet = PSLib()
    fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, ["127.0.0.1:9101"]))
    losses, startups = [], []
    for name in ("first", "second"):
        main, startup = fluid.Program(), fluid.Program()
        with fluid.program_guard(main, startup), fleet_embedding(click_name="click"):
            ids = fluid.data("ids", [None, 1], "int64")
            rows = fluid.layers.embedding(
                ids, [9, 2], is_sparse=True, is_distributed=True, param_attr=f"table_{name}"
            )
            losses.append(fluid.layers.mean(fluid.layers.fc(rows, 1)))
        startups.append(startup)
    optimizer = fleet.distributed_optimizer(fluid.optimizer.Adam(0.1), {"table_first": {}})
    with pytest.raises(ValueError, match="scopes must have one entry per loss"):
        optimizer.minimize(losses, [fluid.Scope()], startups)
    operators, pairs = optimizer.minimize(losses, [fluid.Scope()] * 2, startups)
    assert {parameter.name for parameter, _ in pairs} >= {"table_first", "table_second"}
    assert operators
