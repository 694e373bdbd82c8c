"""Settings of a reader."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sparsefleet.data.byte_source import COMPRESSIONS, Compression
from sparsefleet.data.file_list import Download
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_bool, require_int, require_positive

_MANY = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ReaderConfig:
    """How files are read and what happens to bad lines."""

    layout: Literal["dict", "tuple"] = "dict"
    """Columns of a batch by name, for a model with named arguments, or in their order."""

    include_last_offset: bool = False
    """Offsets of a slot without shape: int64[B], where each record's values begin; or, as
    `SparseEmbeddingBag(include_last_offset=True)` wants them, int64[B + 1], ended by N."""

    drop_last: bool = False
    """Leave out the short batch at the end of each reading thread."""

    queue_batches: int = 8
    """Batches that may wait to be taken; when full, reading waits. More: more memory."""

    max_bad_lines: int = 0
    """Malformed lines, rows or records of a pass that are skipped; one more ends it with
    BadLineError."""

    quarantine: str | os.PathLike[str] | None = None
    """A file for the bad lines, each with its place and what is wrong. Workers need one each."""

    pipe_command: Sequence[str] | None = None
    """A program and its arguments, run once for each file without a shell: it gets the file,
    decompressed, on its standard input, and what it prints is parsed."""

    shell_command: str | None = None
    """The same as a text for the shell: quoting and safety are then yours."""

    download: Download | None = None
    """Gives for a path the command whose output is the file, decompressed, or None if the file
    is to be opened. Words, or a text for the shell; as a pipe command it may fail."""

    pipe_timeout_s: float = 600.0
    """How long a pipe command, or a download, may neither take input nor give output."""

    wait_s: float = 600.0
    """How long a batch may take to come before that is an error."""

    compression: Compression = "infer"
    """Of all files: "none", "gzip" or "zstd"; "infer" goes by .gz, .zst and .zstd."""

    block_bytes: int = 1 << 20
    """Bytes read and parsed at once."""

    max_line_bytes: int = 1 << 24
    """A longer line is a bad line."""

    storage_options: Mapping[str, Any] = field(default_factory=dict)
    """For the file system of fsspec, where paths have a protocol."""

    def __post_init__(self) -> None:
        require(self.layout in ("dict", "tuple"), self, "layout", "'dict' or 'tuple'")
        require_bool(self, "include_last_offset")
        require_bool(self, "drop_last")
        require_int(self, "queue_batches", 1, _MANY)
        require_int(self, "max_bad_lines", 0, 2**63)
        require_positive(self, "pipe_timeout_s")
        require_positive(self, "wait_s")
        require_int(self, "block_bytes", 1, _MANY)
        require_int(self, "max_line_bytes", 1, _MANY)
        require(self.compression in COMPRESSIONS, self, "compression", f"one of {COMPRESSIONS}")
        self._check_commands()

    @property
    def command(self) -> list[str] | str | None:
        """The pipe command: words, a text for the shell, or none."""
        return self.shell_command if self.pipe_command is None else list(self.pipe_command)

    def _check_commands(self) -> None:
        words = self.pipe_command
        if isinstance(words, str):
            raise ConfigError(
                f"ReaderConfig.pipe_command must be a list of words, got the text {words!r}: give "
                f"{words.split()!r}, or shell_command={words!r} if you want a shell to read it"
            )
        if words is not None:
            holds = len(words) > 0 and all(isinstance(word, str) for word in words)
            require(holds, self, "pipe_command", "a list of words, not empty")
        if self.shell_command is not None:
            holds = isinstance(self.shell_command, str) and self.shell_command.strip() != ""
            require(holds, self, "shell_command", "a text for the shell")
            if words is not None:
                raise ConfigError("ReaderConfig: give pipe_command or shell_command, not both")
