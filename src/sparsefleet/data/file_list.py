"""Lists input files and divides them among workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sparsefleet.errors import ConfigError, InputFileError, InputMissingError

PathLike = str | os.PathLike[str]

Download = Callable[[str], "Sequence[str] | str | None"]
"""Maps a path to the command that prints the file, as a list of words or a shell command line, or
to None if the file should be opened directly.
"""

_PATTERN_CHARACTERS = frozenset("*?[")


class WorkerFiles(list[str]):
    """A worker's part of a list of files; empty if there are more workers than files."""


def list_files(
    paths: PathLike | Iterable[PathLike],
    storage_options: Mapping[str, Any] | None = None,
    *,
    download: Download | None = None,
) -> list[str]:
    """Return the files in `paths`, with patterns expanded in sorted order.

    Raises DataError if a file does not exist.

    paths: one or several paths, local or with an fsspec protocol (``s3://``, ``memory://``). A path
        with ``*``, ``?`` or ``[`` is a pattern, unless a file of that name exists.
    storage_options: for fsspec.
    download: see ReaderConfig; downloaded files are not checked for existence.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name in ("b.txt", "a.txt"):
    ...     (folder / name).touch()
    >>> [os.path.basename(path) for path in list_files(folder / "*.txt")]
    ['a.txt', 'b.txt']
    """
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not given and not isinstance(paths, WorkerFiles):
        raise ConfigError(
            "the list of files is empty: pass at least one path or pattern. To allow a worker "
            "without files, pass the result of fleet.split_files, or all files with worker_index "
            "and worker_num"
        )
    found: list[str] = []
    for path in given:
        if not isinstance(path, (str, os.PathLike)):
            raise ConfigError(f"a path must be a str or os.PathLike, got {path!r}")
        name = os.fspath(path)
        if download is not None and download(name) is not None:
            found.append(name)
        else:
            found.extend(_expand(name, storage_options or {}))
    twice = (
        {path for path in found if found.count(path) > 1} if len(set(found)) < len(found) else ()
    )
    if twice:
        raise ConfigError(
            f"{min(twice)} is listed twice, so its records would be read twice; list each file once"
        )
    return found


def split_files(files: list[str], worker_index: int, worker_num: int) -> WorkerFiles:
    """Return a worker's contiguous part of the files; the first workers may get one more file.

    >>> split_files(["a", "b", "c", "d", "e"], 1, 2)
    ['d', 'e']
    """
    if worker_num < 1 or not 0 <= worker_index < worker_num:
        raise ConfigError(
            f"worker_index must be in 0..{worker_num - 1} for {worker_num} workers, got "
            f"{worker_index}"
        )
    size, larger = divmod(len(files), worker_num)
    start = worker_index * size + min(worker_index, larger)
    return WorkerFiles(files[start : start + size + (worker_index < larger)])


def _expand(path: str, storage_options: Mapping[str, Any]) -> list[str]:
    import fsspec

    try:
        system, inner = fsspec.core.url_to_fs(path, **storage_options)
        if system.isfile(inner):
            return [path]
        if _PATTERN_CHARACTERS & set(path):
            names = sorted(name for name in system.glob(inner) if system.isfile(name))
            if not names:
                raise InputMissingError(f"no file matches the pattern {path}")
            local = "://" not in path
            return [name if local else system.unstrip_protocol(name) for name in names]
        if system.isdir(inner):
            raise InputFileError(f"{path} is a directory: list its files, for example {path}/*")
    except (OSError, ImportError, ValueError) as error:
        if isinstance(error, InputFileError):
            raise
        raise InputFileError(f"{path}: cannot look up the file: {error}") from error
    raise InputMissingError(f"{path}: no such file")
