"""Reads text files with one record per line; native code parses them."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from typing import NoReturn

from sparsefleet import _core
from sparsefleet.data.byte_source import check_zstd, compression_of, open_file, read_blocks
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import (
    BadLine,
    ColumnPart,
    FilePart,
    RecordFormat,
    SourceContext,
)
from sparsefleet.errors import BadLineError, InputFileError, PipeCommandError, SchemaError


def file_blocks(path: str, context: SourceContext) -> Generator[bytes, None, None]:
    """Yield the decompressed file in blocks, as read from disk or from a download command."""
    config = context.config
    command = None if config.download is None else config.download(path)
    if command is not None:
        download = PipeCommand(command, path, config.pipe_timeout_s, context.stopped)
        yield from download.blocks(iter(()), config.block_bytes)
        return
    with open_file(path, config.storage_options) as file:
        compression = compression_of(path, config.compression)
        yield from read_blocks(file, path, compression, config.block_bytes, config.max_window_bytes)


class TextFormat(RecordFormat):
    """A format with one record per line."""

    __slots__ = ()

    needs_first_line: bool = False
    """Whether `native_for` needs the first line of each file."""

    header_lines: int = 0
    """Lines at the start of each file that are not records."""

    @abstractmethod
    def make_native(self) -> _core.RecordFormat:
        """Return the format for the native parser."""

    def native_for(self, first_line: bytes, path: str) -> _core.RecordFormat:  # noqa: ARG002
        """Return the format for a file with this first line. Raises SchemaError if it is wrong."""
        return self.make_native()

    def open_source(self, context: SourceContext) -> TextSource:
        return TextSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        if any(compression_of(path, config.compression) == "zstd" for path in files):
            check_zstd()


class TextSource:
    """Parses lines into columns. Not thread-safe."""

    def __init__(self, format: TextFormat, context: SourceContext) -> None:  # noqa: A002
        native = format.make_native()
        self._format = format
        self._parser = _core.RecordParser(native, context.config.max_line_bytes)
        self._batch = _core.ColumnBatch(native)
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Yield parsed lines; the last piece also contains the file's number of lines."""
        config = self._context.config
        pipe = None
        if config.command is not None:
            pipe = PipeCommand(
                config.command, part.path, config.pipe_timeout_s, self._context.stopped
            )
        failure = None
        try:
            with contextlib.closing(self._blocks(part.path, pipe)) as blocks:
                try:
                    yield from self._parse(part, blocks, room)
                except (BadLineError, SchemaError):
                    failure = None if pipe is None else pipe.await_failure(blocks)
                    raise
        except (BadLineError, SchemaError) as error:
            if pipe is None:
                raise
            if failure is not None:
                raise PipeCommandError(f"{failure}; its output: {error}") from error
            raise type(error)(f"{error}; {pipe.account()}") from error

    def _blocks(self, path: str, pipe: PipeCommand | None) -> Generator[bytes, None, None]:
        block_bytes = self._context.config.block_bytes
        with contextlib.closing(file_blocks(path, self._context)) as source:
            yield from source if pipe is None else pipe.blocks(source, block_bytes)

    def _parse(
        self, part: FilePart, blocks: Iterator[bytes], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        limit = self._context.config.max_line_bytes
        if self._format.needs_first_line:
            line, blocks = _peek_line(blocks, limit)
            if line is not None:
                self._parser = _core.RecordParser(self._format.native_for(line, part.path), limit)
        begin = max(part.begin, self._format.header_lines)
        self._parser.begin_file(begin, *self._context.share)
        for block in blocks:
            self._parser.feed(block)
            yield from self._drain(part.path, begin, len(block), room)
            if self._context.stopped():
                return
        self._parser.finish()
        yield from self._drain(part.path, begin, 0, room)
        if self._parser.line < part.begin:
            self._complain_of_shorter(part)
        num_records = len(self._batch)
        lines = self._parser.line
        yield ColumnPart(self._batch.take(), num_records, lines, total=lines)

    def _drain(
        self, path: str, begin: int, num_bytes: int, room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        """Parse the rest of the block that was last fed to the parser."""
        parser, context = self._parser, self._context
        before = max(parser.line, begin)
        while outcome := parser.parse(self._batch, room()):
            num_records = len(self._batch)
            if outcome == _core.BAD_LINE:
                bad = BadLine(path, *parser.bad_line)
                if num_records > 0:
                    yield ColumnPart(self._batch.take(), num_records, parser.line - 1)
                context.counts.add(bad_lines=1)
                context.bad_lines.take(bad)
            elif outcome == _core.BATCH_FULL:
                yield ColumnPart(self._batch.take(), num_records, parser.line)
        context.counts.add(lines=max(parser.line, begin) - before, bytes=num_bytes)

    def _complain_of_shorter(self, part: FilePart) -> NoReturn:
        raise InputFileError(
            f"{part.path}: the file has {self._parser.line} lines, but {part.begin} had been read "
            "when the state was saved: the file has changed since"
        )


def _peek_line(
    blocks: Iterator[bytes], max_line_bytes: int
) -> tuple[bytes | None, Iterator[bytes]]:
    """Return the first line, or None for an empty file, and an iterator over all blocks."""
    seen: list[bytes] = []
    num_bytes = 0
    for block in blocks:
        seen.append(block)
        num_bytes += len(block)
        if b"\n" in block or num_bytes > max_line_bytes:
            break
    if not seen:
        return None, blocks
    line = b"".join(seen).partition(b"\n")[0]
    return line.removesuffix(b"\r"), chain(seen, blocks)
