"""Load a `fluid.io.save_persistables` folder into all servers while they serve."""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from sparsefleet.errors import CheckpointError, DeadlineError, NotFoundError, UnknownTableError
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.saved_values import load_tables
from sparsefleet.fluid.distributed.served_tables import ModelSource
from sparsefleet.store import RemoteStore, RemoteStoreConfig, Store

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FolderLoad", "wait_until_loaded"]

_LOOK_S = 0.1
_END_S = 30.0
_CONNECT_S = 600.0

_log = logging.getLogger("sparsefleet.fluid")


class FolderLoad:
    """Loads the folder in a background thread of the first server, once workers have defined the
    tables.

    The workers wait until the server reports the result. Only the first server needs access to the
    folder.
    """

    def __init__(
        self, source: ModelSource, role: RoleInfo, folder: str, filename: str | None
    ) -> None:
        self._source = source
        self._role = role
        self._folder = folder
        self._filename = filename
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load-folder", daemon=True)

    def first_note(self) -> dict[str, bytes]:
        """Return the note, by key, that informs workers that the folder is being loaded."""
        return {_note(self._source.name): f"loading {self._folder}".encode()}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(_END_S)

    def _run(self) -> None:
        note = _note(self._source.name)
        others_start = RemoteStoreConfig(connect_timeout_s=_CONNECT_S)
        endpoints = self._role.server_endpoints
        with RemoteStore(endpoints, name="loading-server", config=others_start) as store:
            try:
                if not store.get_note(note).startswith(b"loading "):
                    return  # this server was restarted after the load
                if not self._wait_for_tables(store):
                    return
                counters = load_tables(
                    store, self._source.tables, self._source.program, self._folder, self._filename
                )
                store.put_note(note, f"loaded {json.dumps(counters)}".encode())
            except Exception as error:  # thread boundary: report the error to the workers
                _log.exception("%s could not be loaded", self._folder)
                store.put_note(note, f"failed {error}".encode())

    def _wait_for_tables(self, store: Store) -> bool:
        """Wait until workers have defined all tables.

        Returns False if the server is stopped first.
        """
        tables = self._source.tables
        for name in (*(table.name for table in tables.dense), *tables.sparse):
            while not _is_defined(store, name):
                if self._ended.wait(_LOOK_S):
                    return False
        return True


def wait_until_loaded(store: Store, name: str, wait_s: float) -> dict[str, float] | None:
    """Wait until a server has loaded its folder.

    Returns the step counters, or None if no folder is being loaded.
    """
    end = time.monotonic() + wait_s
    while True:
        try:
            text = store.get_note(_note(name)).decode()
        except NotFoundError:
            return None
        state, _, rest = text.partition(" ")
        if state == "loaded":
            return dict(json.loads(rest))
        if state == "failed":
            raise CheckpointError(f"server 0 could not load the saved folder: {rest}")
        if time.monotonic() > end:
            raise DeadlineError(f"server 0 did not finish loading {rest} within {wait_s:g} s")
        time.sleep(_LOOK_S)


def _is_defined(store: Store, table: str) -> bool:
    try:
        store.info(table)
    except UnknownTableError:
        return False
    return True


def _note(name: str) -> str:
    return f"fluid/{name}/loading"
