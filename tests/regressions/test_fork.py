"""A fork that drops its copies of servers, stores and cuts does not affect the parent's."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from tests.support.servers import NativeServers

from sparsefleet.errors import ConfigError
from sparsefleet.store import TableSpec


def exit_code_of_fork(act: Callable[[], None]) -> int:
    """Run ``act`` in a fork, which must not run the parent's cleanup."""
    pid = os.fork()
    if pid == 0:
        try:
            act()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_dropping_a_server_in_a_fork_leaves_the_parents_listening() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        store.define(TableSpec(name="t", dim=2))
        assert exit_code_of_fork(servers.servers.clear) == 0
        assert store.pull("t", np.arange(3)).shape == (3, 2)
        with servers.connect(name="another") as other:
            assert other.info("t").size == 3


def test_a_server_cannot_be_stopped_from_a_fork() -> None:
    with NativeServers(1) as servers, servers.connect() as store:

        def stop() -> None:
            try:
                servers.servers[0].stop()
            except ConfigError:
                return
            raise AssertionError("stopped")

        assert exit_code_of_fork(stop) == 0
        assert store.stats()


def test_dropping_a_cut_in_a_fork_leaves_the_parents_open() -> None:
    with NativeServers(2) as servers, servers.connect() as store:
        store.define(TableSpec(name="t", dim=2))
        store.pull("t", np.arange(1000))
        chunks = store.rows("t", chunk_rows=100)
        seen = len(next(chunks).keys)
        assert exit_code_of_fork(chunks.close) == 0  # type: ignore[attr-defined]
        store.push("t", np.arange(5), np.ones((5, 2), np.float32))
        assert seen + sum(len(chunk.keys) for chunk in chunks) == 1000


def test_closing_a_store_in_a_fork_leaves_the_parents_connected() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        store.define(TableSpec(name="t", dim=2))
        assert exit_code_of_fork(store.close) == 0
        assert store.pull("t", np.arange(3)).shape == (3, 2)
