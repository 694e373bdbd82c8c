"""Tables of a program on servers as folders that servers write, or as files."""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.program_workers import (
    ProgramWorker,
    feeds_of,
    fleet_of,
    ids_and_numbers,
    make_worker,
    run_workers,
)
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet import fluid
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import LocalFolder
from sparsefleet.errors import CheckpointError, ConfigError, CorruptFileError
from sparsefleet.fluid.fleet import StrategyFactory
from sparsefleet.server.table_files import TableFiles
from sparsefleet.store import Rows

TABLE = "embedding_0.w_0"
LAYER = "fc_0.w_0"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeServers]:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    with NativeServers(2) as started:
        yield started


def adagrad() -> Any:
    return fluid.optimizer.Adagrad(0.1)


def only_worker(
    servers: NativeServers,
    optimizer: Callable[[], Any] = adagrad,
    layers: Callable[[], fluid.Variable] = ids_and_numbers,
) -> ProgramWorker:
    """Return a worker, started with the global scope and trained for some steps."""
    strategy = StrategyFactory.create_sync_strategy
    worker = make_worker(fleet_of(servers, 0, 1), optimizer, strategy, layers)
    worker.scope = fluid.global_scope()
    worker.fleet.init_worker()
    worker.executor.run(worker.network.startup)
    for feed in feeds_of(0, 4):
        worker.run(feed)
    return worker


@pytest.fixture
def worker(servers: NativeServers) -> Iterator[ProgramWorker]:
    made = only_worker(servers)
    yield made
    if made.fleet._training is not None and made.fleet._training.is_started:
        made.fleet.stop_worker()


def rows_on(worker: ProgramWorker) -> Rows:
    """All rows of the table, sorted by key."""
    chunks = list(worker.fleet.model.store.rows(TABLE))
    rows = Rows(*(np.concatenate(column) for column in zip(*chunks, strict=True)))
    order = np.argsort(rows.keys)
    return Rows(*(column[order] for column in rows))


def assert_same(found: Rows, wanted: Rows) -> None:
    for part in Rows._fields:
        np.testing.assert_array_equal(getattr(found, part), getattr(wanted, part), err_msg=part)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def train_on(worker: ProgramWorker) -> None:
    for feed in feeds_of(7, 3):
        worker.run(feed)


def load_into(folder: Path, num_servers: int, filename: str | None = None) -> tuple[Rows, Any]:
    """Return the rows and a layer of a new job on N servers that loads a folder."""
    with NativeServers(num_servers) as others, fluid.scope_guard(fluid.Scope()):
        again = only_worker(others)
        fluid.io.load_persistables(again.executor, folder, again.network.main, filename)
        found = rows_on(again), again.value(LAYER).copy()
        again.fleet.stop_worker()
    return found


@pytest.mark.parametrize("layout", [None, "folder", "file"])
@pytest.mark.parametrize("filename", [None, "all"])
def test_both_layouts_bring_all_rows_and_their_state_to_other_servers(
    layout: Any, filename: str | None, worker: ProgramWorker, tmp_path: Path
) -> None:
    fluid.io.save_persistables(
        worker.executor, tmp_path, worker.network.main, filename, table_layout=layout
    )
    if layout == "file":
        assert all(path.is_file() for path in tmp_path.iterdir())
    else:
        place = tmp_path / ("all.tables" if filename else "") / TABLE
        manifest = Checkpoint.open(str(place)).manifest
        assert manifest.table(TABLE).num_shards == 2, "each server has written its rows"
        Checkpoint.open(str(place)).verify()
    wanted, layer = rows_on(worker), worker.value(LAYER).copy()
    assert wanted.state.shape[1] > 0
    for num_servers in (1, 3):
        rows, found = load_into(tmp_path, num_servers, filename)
        assert_same(rows, wanted)
        np.testing.assert_array_equal(found, layer)


def test_a_folder_is_loaded_in_one_process(worker: ProgramWorker, tmp_path: Path) -> None:
    worker.fleet.save_persistables(worker.executor, tmp_path)
    wanted = rows_on(worker)
    with fluid.scope_guard(fluid.Scope()):
        program = worker.network.main.clone(for_test=True)
        program._distributed = None
        fluid.io.load_params(worker.executor, tmp_path, program)
        table = fluid.global_scope().find_var(TABLE).get_tensor()
        found = np.array(table)[wanted.keys.astype(np.int64)]
        np.testing.assert_array_equal(found, wanted.values)
        assert table.store.info(TABLE).size == len(wanted.keys)


def test_one_layout_takes_the_place_of_the_other(worker: ProgramWorker, tmp_path: Path) -> None:
    for layout in ("file", "folder", "folder", "file", "folder"):
        train_on(worker)
        worker.fleet.save_persistables(worker.executor, tmp_path, table_layout=layout)
        assert (tmp_path / TABLE).is_dir() == (layout == "folder")
        assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        assert_same(load_into(tmp_path, 1)[0], rows_on(worker))


@pytest.mark.parametrize("layout", ["folder", "file"])
def test_fluid_save_and_program_states_know_both_layouts(
    layout: Any, worker: ProgramWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, prefix = worker.network.main, str(tmp_path / "run" / "model")
    if layout == "file":
        monkeypatch.setattr("sparsefleet.fluid.io.saving._layout", lambda *_: "file")
    fluid.save(main, prefix)
    names = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"model.pdparams", "model.pdopt", "model.pdmodel"}
    assert names == (files | {"model.pdparams.tables"} if layout == "folder" else files)
    wanted = rows_on(worker)
    state = fluid.io.load_program_state(prefix)
    order = np.argsort(state[f"{TABLE}//keys"])
    for part in Rows._fields:
        np.testing.assert_array_equal(state[f"{TABLE}//{part}"][order], getattr(wanted, part))
    assert str(state[f"{TABLE}//optimizer"]) == "adagrad"
    train_on(worker)
    assert (rows_on(worker).values[: len(wanted.keys)] != wanted.values).any()
    fluid.load(main, prefix, worker.executor)
    assert_same(rows_on(worker), wanted)
    train_on(worker)
    fluid.io.set_program_state(main, {TABLE + end: state[TABLE + end] for end in _ends()})
    assert_same(rows_on(worker), wanted)


def _ends() -> list[str]:
    return [f"//{part}" for part in (*Rows._fields, "optimizer")]


def test_fluid_load_and_a_state_read_a_folder_of_persistables(
    worker: ProgramWorker, tmp_path: Path
) -> None:
    worker.fleet.save_persistables(worker.executor, tmp_path)
    wanted = rows_on(worker)
    train_on(worker)
    fluid.load(worker.network.main, str(tmp_path), worker.executor)
    assert_same(rows_on(worker), wanted)
    state = fluid.io.load_program_state(str(tmp_path))
    assert sorted(state[f"{TABLE}//keys"]) == sorted(wanted.keys)
    np.testing.assert_array_equal(state[LAYER], worker.value(LAYER))


def test_rows_of_another_optimizer_keep_their_values_alone(
    worker: ProgramWorker, tmp_path: Path
) -> None:
    wanted = rows_on(worker)
    for layout in ("folder", "file"):
        folder = tmp_path / layout
        fluid.io.save_params(
            worker.executor,
            folder,
            worker.network.main,
            table_layout=layout,  # type: ignore[arg-type]
        )
        with NativeServers(1) as others, fluid.scope_guard(fluid.Scope()):
            again = only_worker(others, lambda: fluid.optimizer.Ftrl(0.1, l1=0.01))
            fluid.io.load_params(again.executor, folder, again.network.main)
            found = rows_on(again)
            again.fleet.stop_worker()
        np.testing.assert_array_equal(found.values, wanted.values)
        assert found.state.shape[1] == 2 * wanted.state.shape[1]
        assert not found.state.any()


def test_an_inference_model_is_saved_whole_or_not_at_all(
    worker: ProgramWorker, tmp_path: Path
) -> None:
    target = worker.network.main.global_block().var("fc_1.tmp_1")

    def save() -> None:
        worker.fleet.save_inference_model(worker.executor, tmp_path, ["ids", "x"], [target])

    save()
    before = contents(tmp_path)
    assert {"__model__", LAYER, f"{TABLE}/manifest.json"} <= set(before)
    train_on(worker)
    with full_disk(), pytest.raises(CheckpointError, match="No space left on device"):
        save()
    assert contents(tmp_path) == before


@contextmanager
def full_disk() -> Iterator[None]:
    """Make writing rows fail on the servers."""
    create = LocalFolder.create

    def full(folder: LocalFolder, path: str) -> Any:
        file = create(folder, path)

        def write(data: object) -> None:
            del data
            raise OSError(errno.ENOSPC, "No space left on device")

        if path.startswith("tables/"):
            file._write = write  # type: ignore[method-assign]
        return file

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalFolder, "create", full)
        yield


def test_a_full_disk_of_a_server_leaves_the_last_save(
    worker: ProgramWorker, tmp_path: Path
) -> None:
    worker.fleet.save_persistables(worker.executor, tmp_path)
    before = contents(tmp_path)
    train_on(worker)
    message = r"cannot write .*parquet: No space left on device"
    with full_disk(), pytest.raises(CheckpointError, match=message):
        worker.fleet.save_persistables(worker.executor, tmp_path)
    assert contents(tmp_path) == before
    worker.fleet.save_persistables(worker.executor, tmp_path)
    assert_same(load_into(tmp_path, 2)[0], rows_on(worker))


def test_all_workers_may_save_and_worker_0_writes(
    servers: NativeServers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)

    def work(worker: ProgramWorker) -> int:
        rank = worker.fleet.worker_index()
        worker.run(feeds_of(rank, 1)[0])
        main, target = worker.network.main, worker.network.loss
        with fluid.scope_guard(worker.scope):
            folder = tmp_path / f"by worker {rank}"
            worker.fleet.save_persistables(worker.executor, folder)
            fluid.io.save_params(worker.executor, folder, main)
            fluid.save(main, str(folder / "model"))
            names = worker.fleet.save_inference_model(
                worker.executor, folder, ["ids", "x", "y"], [target]
            )
        assert names == ["save_infer_model/scale_0.tmp_0"]
        return rank

    assert run_in_turns(servers, work) == [0, 1]
    assert (tmp_path / "by worker 0" / "__model__").is_file()
    assert not (tmp_path / "by worker 1").exists()
    assert "worker 0 saves the model for all workers" in caplog.text


def run_in_turns(servers: NativeServers, work: Callable[[ProgramWorker], int]) -> list[int]:
    """Run one worker after another: all threads of a process share the global scope."""
    turn = threading.Lock()

    def one_by_one(worker: ProgramWorker) -> int:
        with turn:
            return work(worker)

    return run_workers(servers, 2, one_by_one, adagrad, StrategyFactory.create_async_strategy)


def test_any_worker_saves_the_variables_it_names(servers: NativeServers, tmp_path: Path) -> None:
    def work(worker: ProgramWorker) -> int:
        rank = worker.fleet.worker_index()
        worker.run(feeds_of(rank, 1)[0])
        main = worker.network.main
        block = main.global_block()
        with fluid.scope_guard(worker.scope):
            fluid.io.save_vars(
                worker.executor, tmp_path / str(rank), main, [block.var(TABLE), block.var(LAYER)]
            )
        return rank

    assert run_in_turns(servers, work) == [0, 1]
    for rank in "01":
        assert {path.name for path in (tmp_path / rank).iterdir()} == {TABLE, LAYER}


def test_servers_that_do_not_see_the_folder_have_it_written_and_read_for_them(
    worker: ProgramWorker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sees = TableFiles._sees
    monkeypatch.setattr(
        TableFiles, "_sees", lambda files, *save: files._shard[0] == 0 and sees(files, *save)
    )
    worker.fleet.save_persistables(worker.executor, tmp_path)
    manifest = Checkpoint.open(str(tmp_path / TABLE)).manifest
    assert manifest.table(TABLE).num_shards == 1, "this process has written all rows"
    assert "will write all rows for them" in caplog.text
    wanted = rows_on(worker)
    train_on(worker)
    fluid.io.load_persistables(worker.executor, tmp_path, worker.network.main)
    assert "will read all rows for them" in caplog.text
    assert_same(rows_on(worker), wanted)


@pytest.mark.parametrize("seen", [True, False])
def test_a_damaged_folder_changes_nothing(
    seen: bool, worker: ProgramWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not seen:
        monkeypatch.setattr(TableFiles, "_sees", lambda *_: False)
    worker.fleet.save_persistables(worker.executor, tmp_path)
    train_on(worker)
    wanted, layer = rows_on(worker), worker.value(LAYER).copy()
    victim = sorted((tmp_path / TABLE / "tables").rglob("*.parquet"))[-1]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptFileError, match=victim.name):
        fluid.io.load_persistables(worker.executor, tmp_path, worker.network.main)
    assert_same(rows_on(worker), wanted)
    np.testing.assert_array_equal(worker.value(LAYER), layer)


def test_an_unfinished_folder_is_named(worker: ProgramWorker, tmp_path: Path) -> None:
    worker.fleet.save_persistables(worker.executor, tmp_path)
    (tmp_path / TABLE / "manifest.json").unlink()
    with pytest.raises(RuntimeError, match=f"{TABLE}: found a folder without manifest.json"):
        fluid.io.load_persistables(worker.executor, tmp_path, worker.network.main)


def test_a_table_of_another_width_is_refused_with_both_shapes(
    worker: ProgramWorker, tmp_path: Path
) -> None:
    def wider() -> fluid.Variable:
        ids = fluid.layers.data("ids", [1], dtype="int64")
        x = fluid.layers.data("x", [3])
        y = fluid.layers.data("y", [1])
        rows = fluid.layers.embedding(ids, [50, 6], is_sparse=True)
        guess = fluid.layers.fc(fluid.layers.concat([x, rows], axis=1), 1)
        return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))

    for layout in ("folder", "file"):
        worker.fleet.save_persistables(
            worker.executor,
            tmp_path / layout,
            table_layout=layout,  # type: ignore[arg-type]
        )
    worker.fleet.stop_worker()
    with NativeServers(1) as others, fluid.scope_guard(fluid.Scope()):
        again = only_worker(others, layers=wider)
        block = again.network.main.global_block()
        for layout in ("folder", "file"):
            message = rf"'{TABLE}': saved with shape \(50, 4\) in .*/{TABLE}, expected \(50, 6\); "
            with pytest.raises(RuntimeError, match=message):
                fluid.io.load_vars(
                    again.executor, tmp_path / layout, again.network.main, [block.var(TABLE)]
                )
        again.fleet.stop_worker()


def test_a_layout_that_does_not_exist_is_refused(worker: ProgramWorker, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="table_layout must be 'file', 'folder' or None"):
        worker.fleet.save_persistables(
            worker.executor,
            tmp_path / "new",
            table_layout="pickle",  # type: ignore[arg-type]
        )
    assert not (tmp_path / "new").exists()


def test_bytes_hold_the_rows_of_servers(worker: ProgramWorker) -> None:
    content = fluid.io.save_persistables(worker.executor, None, worker.network.main)
    assert isinstance(content, bytes)
    assert f"{TABLE}//values".encode() in content[:5000]


def test_a_local_program_writes_folders_on_request(tmp_path: Path) -> None:
    ids = fluid.data("ids", [None], "int64")
    loss = fluid.layers.mean(fluid.embedding(ids, [10**9, 4], is_sparse=True, param_attr="table"))
    adagrad().minimize(loss)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.array([3, 10**8])}, fetch_list=[loss])
    fluid.io.save_persistables(exe, tmp_path / "folder", table_layout="folder")
    fluid.io.save_persistables(exe, tmp_path / "file")
    assert Checkpoint.open(str(tmp_path / "folder" / "table")).manifest.table("table").num_rows == 2
    assert (tmp_path / "file" / "table").is_file()
    after = exe.run(feed={"ids": np.array([3, 10**8])}, fetch_list=[loss])[0]
    for layout in ("folder", "file"):
        with fluid.scope_guard(fluid.Scope()):
            exe.run(fluid.default_startup_program())
            fluid.io.load_persistables(exe, tmp_path / layout)
            found = exe.run(feed={"ids": np.array([3, 10**8])}, fetch_list=[loss])[0]
        np.testing.assert_array_equal(found, after)
