"""Rows of live servers, read and never created."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.servers import JOB_KEY, NativeServers
from tests.unit.serving.small_export import ROWS, exported_pairs, pairs

from sparsefleet import Predictor
from sparsefleet.errors import ConfigError, StoreUnavailableError
from sparsefleet.serving.export.row_file import open_tables
from sparsefleet.serving.row_stores import ServerRows, open_rows
from sparsefleet.store import Normal, RemoteStore, Rows, TableSpec


def fill(store: RemoteStore, *, with_rows: bool = True) -> None:
    """Servers as they would be after the training that was exported."""
    directory, manifest = exported_pairs()
    for name, table in open_tables(directory, manifest.tables).items():
        store.define(
            TableSpec(
                name=name,
                dim=table.entry.dim,
                initializer=Normal(0.0, 1.0),
                seed=table.entry.initial.seed,
            )
        )
        if with_rows:
            none = np.empty((ROWS, 0), np.float32)
            values = np.ascontiguousarray(table.rows.values)
            store.import_rows(name, Rows(table.keys, values, none, none.astype(np.uint32)))


def rows_of(servers: NativeServers) -> ServerRows:
    return ServerRows(servers.endpoints, manifest=exported_pairs()[1], job_key=JOB_KEY)


def test_predictions_equal_those_from_files_and_nothing_is_created() -> None:
    directory, _ = exported_pairs()
    batch = pairs(*np.random.default_rng(0).integers(0, ROWS + 20, (2, 50)))
    with NativeServers(2) as servers, servers.connect() as trainer:
        fill(trainer)
        rows = rows_of(servers)
        predictor = Predictor(directory, rows=rows)
        np.testing.assert_array_equal(predictor.predict(batch), Predictor(directory).predict(batch))
        keys = np.array([3, ROWS, 49, 2**63], np.uint64)
        for name in ("ads", "users"):
            assert rows.tables()[name].known(keys).tolist() == [True, False, True, False]
        assert trainer.info("ads").size == ROWS
        rows.check()
        rows.close()


def test_what_training_changes_is_seen_by_the_next_prediction() -> None:
    directory, _ = exported_pairs()
    with NativeServers(1) as servers, servers.connect() as trainer:
        fill(trainer)
        rows = rows_of(servers)
        predictor = Predictor(directory, rows=rows)
        before = predictor.predict(pairs([7], [8]))
        trainer.push("ads", np.array([7]), np.ones((1, 4), np.float32), add=True)
        assert predictor.predict(pairs([7], [8])) != before
        assert rows.freshness() is not None
        rows.close()


def test_unavailable_or_restarted_servers_are_named_and_used_again() -> None:
    directory, _ = exported_pairs()
    with NativeServers(1) as servers, servers.connect() as trainer:
        port = servers.servers[0].port
        fill(trainer)
        rows = rows_of(servers)
        predictor = Predictor(directory, rows=rows)
        predictor.check_golden()
    with pytest.raises(StoreUnavailableError, match=f"servers 127.0.0.1:{port}"):
        predictor.predict(pairs([1], [1]))
    with NativeServers(1, port=port) as servers, servers.connect() as trainer:
        with pytest.raises(StoreUnavailableError, match="ads"):
            predictor.predict(pairs([1], [1]))
        fill(trainer, with_rows=False)
        with pytest.raises(StoreUnavailableError, match="restarted without this table"):
            rows.check()
        with pytest.raises(StoreUnavailableError, match="restarted without this table"):
            predictor.predict(pairs([1], [1]))
        fill(trainer)
        predictor.check_golden()
        rows.check()
        rows.close()


def test_servers_dealt_otherwise_are_refused_and_not_read_half() -> None:
    with NativeServers(2) as servers, servers.connect() as trainer:
        fill(trainer)
        some = ServerRows(servers.endpoints[:1], manifest=exported_pairs()[1], job_key=JOB_KEY)
        with pytest.raises(StoreUnavailableError, match="the client expects 1 servers"):
            some.tables({"ads": np.arange(ROWS)})
        swapped = ServerRows(servers.endpoints[::-1], manifest=exported_pairs()[1], job_key=JOB_KEY)
        with pytest.raises(StoreUnavailableError):
            swapped.check()
        for rows in (some, swapped):
            rows.close()


def test_rows_are_named_by_a_few_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
    directory, manifest = exported_pairs()
    with NativeServers(2) as servers, servers.connect() as trainer:
        fill(trainer)
        rows = open_rows(directory, manifest, rows=",".join(servers.endpoints))
        Predictor(directory, rows=rows).check_golden()
        rows.close()
    files = open_rows(directory, manifest)
    Predictor(directory, rows=files).check_golden()
    with pytest.raises(ConfigError, match="are always current"):
        open_rows(directory, manifest, rows="127.0.0.1:9100", updates=tmp_path)
    with pytest.raises(ConfigError):
        open_rows(directory, manifest, rows="no address")
