"""The commands by which a server saves and loads its part of the tables."""

from __future__ import annotations

import json
import os
import posixpath
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsefleet import _core
from sparsefleet.checkpoint import Checkpoint, RowLayout
from sparsefleet.errors import ConfigError, NotFoundError, ProtocolError
from sparsefleet.server.command_body import unpack_body
from sparsefleet.server.table_load import DenseSource, TableLoad
from sparsefleet.server.table_save import Destination, TableSave, dense_to_bytes

__all__ = ["TableFiles"]

_MAX_WAIT_S = 5.0  # a command waits no longer, so that others get their turn


class TableFiles:
    """The saves and loads under way in one process: of a server, or of a local store.

    Each goes by a token that its client made up; bodies of commands are JSON. A save or load that
    nobody asks after for a minute is given up. Thread-safe.

    save_root: paths must lie below it, unless it is empty.
    """

    def __init__(
        self, tables: _core.Store, index: int = 0, num_servers: int = 1, *, save_root: str = ""
    ) -> None:
        self._tables = tables
        self._shard = (index, num_servers)
        self._root = save_root
        self._saves: dict[str, TableSave] = {}
        self._loads: dict[str, TableLoad] = {}
        self._lock = threading.Lock()

    def calls(self) -> dict[str, Callable[[bytes], bytes]]:
        """Command -> what answers it."""
        return {
            "dense_place": self._dense_place,
            "dense_write": self._dense_write,
            "files_ready": lambda _: b"{}",
            "save_begin": self._save_begin,
            "save_write": self._save_write,
            "save_dense": self._save_dense,
            "save_wait": self._save_wait,
            "save_end": self._save_end,
            "load_begin": self._load_begin,
            "load_apply": self._load_apply,
            "load_wait": self._load_wait,
            "load_end": self._load_end,
        }

    # -- saving -------------------------------------------------------------------------------

    def _save_begin(self, body: bytes) -> bytes:
        """Opens the cuts."""
        asked = _parse(body)
        save = TableSave(
            self._tables,
            self._shard,
            [RowLayout(*layout) for layout in asked["tables"]],
            dense=asked["dense"],
            only_dirty=asked["only_dirty"],
            clear_dirty=asked["clear_dirty"],
        )
        with self._lock:
            self._saves = {t: one for t, one in self._saves.items() if not one.is_over}
            self._saves[asked["token"]] = save
        return b"{}"

    def _save_write(self, body: bytes) -> bytes:
        """Has them written, in the background."""
        asked = _parse(body)
        self._require_allowed(asked["path"])
        self._save(asked).write(
            Destination(asked["path"], asked["checkpoint"], asked["storage_options"])
        )
        return b"{}"

    def _save_dense(self, body: bytes) -> bytes:
        asked = _parse(body)
        return dense_to_bytes(
            self._save(asked).dense(asked["table"]), asked["first"], asked["last"]
        )

    def _save_wait(self, body: bytes) -> bytes:
        """The files, or null while they are being written."""
        asked = _parse(body)
        return _answer(self._save(asked).wait(min(asked["wait_s"], _MAX_WAIT_S)))

    def _save_end(self, body: bytes) -> bytes:
        """Lets go of the cuts; `in_force` tells whether the checkpoint is."""
        asked = _parse(body)
        with self._lock:
            save = self._saves.pop(asked["token"], None)
        if save is not None:
            try:
                if asked.get("in_force", False):
                    save.commit()
            finally:
                save.end()
        return b"{}"

    def _save(self, asked: dict[str, Any]) -> TableSave:
        with self._lock:
            save = self._saves.get(asked["token"])
        if save is None:
            raise NotFoundError(f"server {self._shard[0]} knows of no save {asked['token']}")
        return save

    # -- loading ------------------------------------------------------------------------------

    def _load_begin(self, body: bytes) -> bytes:
        """Checks all that would be read; nothing changes yet."""
        asked = _parse(body)
        self._require_allowed(asked["path"])
        load = TableLoad(
            self._tables,
            self._shard,
            Checkpoint.open(asked["path"], asked["storage_options"]),
            counters=asked["tables"],
            dense=[DenseSource(**source) for source in asked["dense"]],
        )
        with self._lock:
            self._loads = {t: one for t, one in self._loads.items() if not one.is_over}
            self._loads[asked["token"]] = load
        return b"{}"

    def _load_apply(self, body: bytes) -> bytes:
        self._load(_parse(body)).apply()
        return b"{}"

    def _load_wait(self, body: bytes) -> bytes:
        """What was done, or null while it goes on."""
        asked = _parse(body)
        return _answer(self._load(asked).wait(min(asked["wait_s"], _MAX_WAIT_S)))

    def _load_end(self, body: bytes) -> bytes:
        asked = _parse(body)
        with self._lock:
            load = self._loads.pop(asked["token"], None)
        if load is not None:
            load.end()
        return b"{}"

    def _load(self, asked: dict[str, Any]) -> TableLoad:
        with self._lock:
            load = self._loads.get(asked["token"])
        if load is None:
            raise NotFoundError(f"server {self._shard[0]} knows of no load {asked['token']}")
        return load

    # -- dense tables ---------------------------------------------------------------------------

    def _dense_place(self, body: bytes) -> bytes:
        """Which elements of a dense table are here."""
        here = self._tables.read_dense_part(_parse(body)["table"])
        return _answer({"begin": here.begin, "size": len(here.values)})

    def _dense_write(self, body: bytes) -> bytes:
        """Values and state of n of those elements: float32[1 + S, n] behind the head."""
        head, data = unpack_body(body)
        floats = np.frombuffer(data, "<f4").reshape(-1, head["n"])
        state = np.ascontiguousarray(floats[1:])
        self._tables.write_dense_part(head["table"], head["begin"], floats[0].copy(), state)
        return b"{}"

    def _require_allowed(self, path: str) -> None:
        if self._root and not _is_below(path, self._root):
            raise ConfigError(
                f"server {self._shard[0]} saves and loads below {self._root} only, got {path}"
            )


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the body of a command is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the body of a command is no object: {value!r:.100}")
    return value


def _answer(value: dict[str, Any] | None) -> bytes:
    return json.dumps(value).encode()


def _is_below(path: str, root: str) -> bool:
    """Whether `path` leads to `root` or into it; links are followed on this machine's disks."""
    if "://" in path or "://" in root:
        clean = posixpath.normpath(path.partition("://")[2])
        top = posixpath.normpath(root.partition("://")[2])
        same = path.partition("://")[0] == root.partition("://")[0]
        return same and (clean == top or clean.startswith(top.rstrip("/") + "/"))
    real, top = os.path.realpath(path), os.path.realpath(root)
    return os.path.commonpath([real, top]) == top
