"""A save that writes everything before it gives any file its final name."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from sparsefleet.checkpoint.folder import LocalFolder, sync_to_disk
from sparsefleet.checkpoint.names import MANIFEST, token_of
from sparsefleet.errors import CheckpointIoError, ConfigError, SparseFleetError
from sparsefleet.fluid.io.variable_file import ArrayToWrite, RowsToWrite, write_variables
from sparsefleet.store.table_folders import TableFolders

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PendingSave", "drafts_in", "path_in"]

_DRAFT = ".saving-"
_MAX_SYNCING = 8
_FILES_PER_THREAD = 10
_UNCHANGED = "the previous save is unchanged; free some space or save elsewhere"
_HALF_DONE = "some variables in it are new and others old, each of them complete; save again"


class PendingSave:
    """Files and table folders that are written into a folder together.

    Until `commit`, new files are kept in a hidden folder inside that folder, and tables in pending
    checkpoints in their own folders. `commit` moves them to their final names, without using more
    space; leaving the `with` block without committing removes them and leaves the folder unchanged.
    If the process dies during `commit`, some variables are new and others old, but each is
    complete. The next save removes anything left in the hidden folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[tuple[Path, Path]] = []  # (draft, final path)
        self._moves: list[tuple[Path, Path]] = []  # the same, for table folders
        self._tables: list[TableFolders] = []
        with _explained(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(folder)
            self._draft, self._lock = _locked_draft(folder)

    def write_file(self, name: str, variables: Sequence[ArrayToWrite | RowsToWrite]) -> None:
        """Write variables to one file with this name."""
        self._write(name, lambda file: write_variables(file, variables))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file."""
        self._write(name, lambda file: file.write(text.encode()))

    def folder_of_table(self, name: str) -> Path:
        """Return the folder to save a table's rows in, for `add_tables`."""
        path = path_in(self._folder, name)
        if not path.is_file():
            return path
        self._moves.append((self._draft / f"table-{len(self._moves)}", path))
        return self._moves[-1][0]

    def add_tables(self, tables: TableFolders) -> None:
        """Add tables with open snapshots, to be committed or aborted together with the files."""
        self._tables.append(tables)
        tables.write()

    def commit(self) -> None:
        """Wait for the tables and move everything to its final name."""
        self._sync_files()
        for tables in self._tables:
            tables.finish()
        for tables in self._tables:
            tables.commit()
        with _explained(self._folder, _HALF_DONE):
            for draft, path in self._moves:
                path.unlink()
                draft.rename(path)
            for draft, path in self._files:
                _put(draft, path, self._draft)
            sync_to_disk(self._folder)
        self._tables = []
        self.abort()

    def abort(self) -> None:
        """Remove everything that was not committed. Can be called repeatedly."""
        for tables in self._tables:
            tables.abort()
        self._tables = []
        if self._lock >= 0:
            shutil.rmtree(self._draft, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.abort()

    def _sync_files(self) -> None:
        """Sync the files to disk in parallel, so that one journal commit covers several."""

        def sync(file: tuple[Path, Path]) -> None:
            draft, path = file
            with _explained(path):
                sync_to_disk(draft)

        num_threads = min(_MAX_SYNCING, len(self._files) // _FILES_PER_THREAD)
        if num_threads < 2:
            for file in self._files:
                sync(file)
            return
        with ThreadPoolExecutor(num_threads) as pool:
            for _ in pool.map(sync, self._files):
                pass  # raises any thread's error

    def _write(self, name: str, write: Callable[[IO[bytes]], object]) -> None:
        path = path_in(self._folder, name)
        _require_no_other_folder(path)
        draft = self._draft / f"file-{len(self._files)}"
        with _explained(path), draft.open("wb") as file:
            write(file)
        self._files.append((draft, path))


def path_in(folder: Path, name: str) -> Path:
    """Return the path for this name; raise ValueError if it is outside the folder."""
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"'{name}' points outside the folder {folder}")
    return path


@contextlib.contextmanager
def _explained(path: Path, state: str = _UNCHANGED) -> Iterator[None]:
    """Convert a file system error into an error that names the file and the state of the save."""
    try:
        yield
    except SparseFleetError:  # lost servers also raise OSErrors
        raise
    except OSError as error:
        raise CheckpointIoError(
            f"cannot write {path}: {error.strerror or error}; {state}"
        ) from error


def _locked_draft(folder: Path) -> tuple[Path, int]:
    """Create a hidden folder and the lock that marks its save as running.

    The lock is held before the folder gets its name, so that no other save considers the folder
    abandoned.
    """
    token = secrets.token_hex(8)
    unlocked, draft = folder / f".new-{token}", folder / f"{_DRAFT}{token}"
    unlocked.mkdir()
    lock = os.open(unlocked, os.O_RDONLY | os.O_CLOEXEC)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(lock, fcntl.LOCK_EX)
    unlocked.rename(draft)
    return draft, lock


def drafts_in(folder: Path) -> list[Path]:
    """Return the hidden folders of running and abandoned saves."""
    return list(folder.glob(f"{_DRAFT}*"))


def _remove_abandoned(folder: Path) -> None:
    """Remove files left behind by processes that died while saving."""
    for draft in drafts_in(folder):
        with contextlib.suppress(OSError):  # its save is running, or the file system has no locks
            lock = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(draft)
            finally:
                os.close(lock)


def _require_no_other_folder(path: Path) -> None:
    """Raise an error if the path is a folder that does not hold a table."""
    if not path.is_dir():
        return
    files = [file.path for file in LocalFolder(str(path)).files()]
    others = [file for file in files if file != MANIFEST and token_of(file) is None]
    if MANIFEST not in files or others:
        raise ConfigError(
            f"cannot save to {path}, which is a folder with other contents "
            f"({', '.join(others[:1]) or 'no table'}); remove the folder, or save elsewhere"
        )


def _put(draft: Path, path: Path, trash: Path) -> None:
    """Move a file to its final name, after moving a folder with that name to the trash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        path.rename(trash / f"replaced-{draft.name}")
    draft.replace(path)
