"""Settings for a Reader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsefleet.data.byte_source import COMPRESSIONS, DEFAULT_WINDOW_BYTES, Compression
from sparsefleet.data.file_list import Download
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive

_MANY = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderConfig:
    """How a Reader reads files, and what it does with bad lines."""

    layout: Literal["dict", "tuple"] = "dict"
    """Whether a batch is a dict, for a model with named arguments, or a tuple in column order."""

    share: Literal["files", "records"] = "files"
    """Whether a Reader's `worker_index` and `worker_num` divide the list of files or the records.
    With "records", every worker reads all files and takes every n-th record; use this setting for
    one large compressed file, or if there are fewer files than workers. Each worker then
    decompresses everything, but parses only its own lines."""

    include_last_offset: bool = False
    """If False, the offsets of a slot without a shape are int64[B], where each record's values
    start. If True, they are int64[B + 1] and end with N, for
    `SparseEmbeddingBag(include_last_offset=True)`.
    """

    drop_last: bool = False
    """Drop the last batch of each reading thread if it is short."""

    queue_batches: int = 8
    """Number of batches to read ahead; reading pauses when the queue is full. Larger values need
    more memory.
    """

    max_bad_lines: int = 0
    """Number of malformed lines, rows or records that a pass may skip; if there are more, it raises
    BadLineError.
    """

    quarantine: str | os.PathLike[str] | None = None
    """A file for bad lines, with the position and problem of each; use one file per worker."""

    pipe_command: Sequence[str] | None = None
    """A program and its arguments, run once per file without a shell. It gets the decompressed file
    on its standard input, and its output is parsed.
    """

    shell_command: str | None = None
    """The pipe command as a shell command line; quoting and safety are up to you."""

    download: Download | None = None
    """A function that maps a path to the command whose output is the decompressed file, as a list
    of words or a shell command line, or to None if the file should be opened instead.
    """

    pipe_timeout_s: float = 600.0
    """How long a pipe command or download may neither read input nor write output."""

    wait_s: float = 600.0
    """How long to wait for a batch before raising an error."""

    compression: Compression = "infer"
    """The compression of all files: "none", "gzip" or "zstd". "infer" uses the suffix: .gz, .zst or
    .zstd.
    """

    block_bytes: int = 1 << 20
    """Number of bytes to read and parse at once."""

    max_window_bytes: int = DEFAULT_WINDOW_BYTES
    """Memory for the window of a zstd file; a file that needs more is rejected. Files from
    `zstd --long` and from levels above 19 can need up to 1 << 27.
    """

    max_line_bytes: int = 1 << 24
    """Maximum length of a line; longer lines are bad lines."""

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """Options for fsspec, used for paths with a protocol."""

    def __post_init__(self) -> None:
        require(self.layout in ("dict", "tuple"), self, "layout", "'dict' or 'tuple'")
        require(self.share in ("files", "records"), self, "share", "'files' or 'records'")
        require_bool(self, "include_last_offset")
        require_bool(self, "drop_last")
        require_int(self, "queue_batches", 1, _MANY)
        require_int(self, "max_bad_lines", 0, 2**63)
        require_positive(self, "pipe_timeout_s")
        require_positive(self, "wait_s")
        require_int(self, "block_bytes", 1, _MANY)
        require_int(self, "max_window_bytes", 1 << 10, _MANY)
        require_int(self, "max_line_bytes", 1, _MANY)
        require(self.compression in COMPRESSIONS, self, "compression", f"one of {COMPRESSIONS}")
        self._check_commands()

    @property
    def command(self) -> list[str] | str | None:
        """The pipe command: a list of words, a shell command line, or None."""
        return self.shell_command if self.pipe_command is None else list(self.pipe_command)

    def _check_commands(self) -> None:
        words = self.pipe_command
        if isinstance(words, str):
            raise ConfigError(
                f"ReaderConfig.pipe_command must be a list of words, got the string {words!r}: use "
                f"{words.split()!r}, or shell_command={words!r} to run it in a shell"
            )
        if words is not None:
            holds = len(words) > 0 and all(isinstance(word, str) for word in words)
            require(holds, self, "pipe_command", "a non-empty list of strings")
        if self.shell_command is not None:
            holds = isinstance(self.shell_command, str) and self.shell_command.strip() != ""
            require(holds, self, "shell_command", "a non-empty string")
            if words is not None:
                raise ConfigError(
                    "ReaderConfig accepts either pipe_command or shell_command, but got both"
                )
