"""The commands that make a server save and load its part of the tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsefleet import _core
from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.folder import Confinement, Folder, open_folder
from sparsefleet.checkpoint.names import MANIFEST, is_token, marker_file
from sparsefleet.checkpoint.row_chunk import RowLayout
from sparsefleet.checkpoint.save_marker import read_manifest
from sparsefleet.errors import CheckpointMissingError, ConfigError, NotFoundError, ProtocolError
from sparsefleet.server.command_loop import unpack_body
from sparsefleet.server.table_load import DenseSource, LoadPart, TableLoad
from sparsefleet.server.table_save import Destination, TableSave, dense_to_bytes

__all__ = ["TableFiles"]

_MAX_WAIT_S = 5.0  # a waiting command occupies a handler thread


class TableFiles:
    """The running saves and loads of a server or local store.

    Each is identified by a token chosen by its client; command bodies are JSON. A save or load that
    is not polled for a minute is canceled. Thread-safe.

    save_root: if not empty, clients' paths and everything reached from them must be under this
        directory or URL.
    change_in_bulk: runs a function that changes many rows, and makes them durable.
    """

    def __init__(
        self,
        tables: _core.Store,
        index: int = 0,
        num_servers: int = 1,
        *,
        save_root: str = "",
        change_in_bulk: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self._tables = tables
        self._change_in_bulk = change_in_bulk or (lambda change: change())
        self._shard = (index, num_servers)
        reason = f"server {index} only saves and loads under its --save-root"
        self._within = Confinement(save_root, reason) if save_root else None
        self._saves: dict[str, TableSave] = {}
        self._loads: dict[str, TableLoad] = {}
        self._lock = threading.Lock()

    def calls(self) -> dict[str, Callable[[bytes], bytes]]:
        """Return the function for each command."""
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
            "sees_saves": self._sees_saves,
        }

    def _save_begin(self, body: bytes) -> bytes:
        """Begin a save by taking a snapshot of the tables."""
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
        """Start writing `tables` (default: all) of a save in the background."""
        asked = _parse(body)
        token = asked["checkpoint"]
        if not is_token(token):  # it becomes part of file names
            raise ProtocolError(f"checkpoint: got the token {token!r:.99}, expected 16 hex digits")
        self._save(asked).write(Destination(self._folder(asked), token, asked.get("tables")))
        return b"{}"

    def _save_dense(self, body: bytes) -> bytes:
        asked = _parse(body)
        return dense_to_bytes(
            self._save(asked).dense(asked["table"]), asked["first"], asked["last"]
        )

    def _save_wait(self, body: bytes) -> bytes:
        """Return the files of a save, or null while they are being written."""
        asked = _parse(body)
        return _answer(self._save(asked).wait(min(asked["wait_s"], _MAX_WAIT_S)))

    def _save_end(self, body: bytes) -> bytes:
        """Release the snapshot; `is_committed` says whether the checkpoint was committed."""
        asked = _parse(body)
        with self._lock:
            save = self._saves.pop(asked["token"], None)
        if save is not None:
            try:
                if asked.get("is_committed", False):
                    save.commit()
            finally:
                save.end()
        return b"{}"

    def _save(self, asked: dict[str, Any]) -> TableSave:
        with self._lock:
            save = self._saves.get(asked["token"])
        if save is None:
            raise NotFoundError(
                f"server {self._shard[0]} has no save {asked['token']}; it has ended or was "
                "canceled"
            )
        return save

    def _load_begin(self, body: bytes) -> bytes:
        """Begin a load by checking all data to be read, without changing anything.

        The tables come from one checkpoint, or from several `parts`.
        """
        asked = _parse(body)
        parts = [self._load_part(part) for part in asked.get("parts", [asked])]
        load = TableLoad(self._tables, self._shard, parts, self._change_in_bulk)
        with self._lock:
            self._loads = {t: one for t, one in self._loads.items() if not one.is_over}
            self._loads[asked["token"]] = load
        return b"{}"

    def _load_part(self, asked: dict[str, Any]) -> LoadPart:
        checkpoint = Checkpoint.at(self._folder(asked))
        found, wanted = checkpoint.manifest.token, asked.get("checkpoint")
        if wanted not in (None, found):
            raise CheckpointMissingError(
                f"server {self._shard[0]} sees a different checkpoint in {checkpoint.path}: "
                f"expected save {wanted}, found {found}; use a directory that all servers share"
            )
        return LoadPart(
            checkpoint=checkpoint,
            counters=asked["tables"],
            dense=[DenseSource(**source) for source in asked["dense"]],
            without_state=asked.get("without_state", ()),
        )

    def _load_apply(self, body: bytes) -> bytes:
        self._load(_parse(body)).apply()
        return b"{}"

    def _load_wait(self, body: bytes) -> bytes:
        """Return the number of rows loaded, or null while loading."""
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
            raise NotFoundError(
                f"server {self._shard[0]} has no load {asked['token']}; it has ended or was "
                "canceled"
            )
        return load

    def _sees_saves(self, body: bytes) -> bytes:
        """Return whether this server can access the folders and finds the given save in each.

        A save may be in progress or committed.
        """
        saves = _parse(body)["saves"]
        return _answer({"sees": all(self._sees(path, token) for path, token in saves)})

    def _sees(self, path: str, token: str) -> bool:
        try:
            folder = self._folder({"path": path, "storage_options": {}})
        except ConfigError:  # not under the save root
            return False
        if not is_token(token):
            return False
        if folder.size(marker_file(token)) is not None:
            return True
        return folder.size(MANIFEST) is not None and read_manifest(folder).token == token

    def _dense_place(self, body: bytes) -> bytes:
        """Return which elements of a dense table this server holds."""
        here = self._tables.read_dense_part(_parse(body)["table"])
        return _answer({"begin": here.begin, "size": len(here.values)})

    def _dense_write(self, body: bytes) -> bytes:
        """Set the values and state of n elements of a dense table. In the body, the head is
        followed by float32[1 + S, n]: the values, then S arrays of optimizer state.
        """
        head, data = unpack_body(body)
        floats = np.frombuffer(data, "<f4").reshape(-1, head["n"])
        state = np.ascontiguousarray(floats[1:])
        values = floats[0].copy()
        write = self._tables.write_dense_part
        self._change_in_bulk(lambda: write(head["table"], head["begin"], values, state))
        return b"{}"

    def _folder(self, asked: dict[str, Any]) -> Folder:
        """Open the folder named by a client. Raises ConfigError if it is not under the root."""
        path = asked["path"]
        if not isinstance(path, str):
            raise ProtocolError(f"checkpoint path: got {path!r:.100}, expected a string")
        return open_folder(path, asked["storage_options"], within=self._within)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise ProtocolError(f"the command body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProtocolError(f"the command body must be a JSON object, got {value!r:.100}")
    return value


def _answer(value: dict[str, Any] | None) -> bytes:
    return json.dumps(value).encode()
