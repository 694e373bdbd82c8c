"""Text files, a record a line: read, decompressed, piped, parsed natively."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Generator
from typing import NoReturn

from sparsefleet import _core
from sparsefleet.data.bad_lines import BadLine
from sparsefleet.data.byte_source import check_zstd, compression_of
from sparsefleet.data.file_blocks import file_blocks
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.record_source import ColumnPart, FilePart, SourceContext
from sparsefleet.errors import BadLineError, InputFileError

_BATCH_FULL = 1
_BAD_LINE = 2


class TextFormat(RecordFormat):
    """A format of which each line is a record."""

    __slots__ = ()

    @abstractmethod
    def make_native(self) -> _core.RecordFormat:
        """The native parser's description."""

    def open_source(self, context: SourceContext) -> TextSource:
        return TextSource(self, context)

    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        if any(compression_of(path, config.compression) == "zstd" for path in files):
            check_zstd()


class TextSource:
    """Lines into columns. Not thread-safe."""

    def __init__(self, format: TextFormat, context: SourceContext) -> None:  # noqa: A002
        native = format.make_native()
        self._parser = _core.RecordParser(native, context.config.max_line_bytes)
        self._batch = _core.ColumnBatch(native)
        self._context = context

    def read(self, part: FilePart, room: Callable[[], int]) -> Generator[ColumnPart, None, None]:
        """Parts of lines; a file's number of lines is known at its end."""
        config = self._context.config
        pipe = None
        if config.command is not None:
            pipe = PipeCommand(
                config.command, part.path, config.pipe_timeout_s, self._context.stopped
            )
        try:
            with contextlib.closing(self._blocks(part.path, pipe)) as blocks:
                yield from self._parse(part, blocks, room)
        except BadLineError as error:
            if pipe is None:
                raise
            raise BadLineError(f"{error}; {pipe.account()}") from error

    def _blocks(self, path: str, pipe: PipeCommand | None) -> Generator[bytes, None, None]:
        block_bytes = self._context.config.block_bytes
        with contextlib.closing(file_blocks(path, self._context)) as source:
            yield from source if pipe is None else pipe.blocks(source, block_bytes)

    def _parse(
        self, part: FilePart, blocks: Generator[bytes, None, None], room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        self._batch.take()  # what a pass that was left has left
        self._parser.begin_file(part.begin)
        for block in blocks:
            self._parser.feed(block)
            yield from self._drain(part, len(block), room)
            if self._context.stopped():
                return
        self._parser.finish()
        yield from self._drain(part, 0, room)
        if self._parser.line < part.begin:
            self._complain_of_shorter(part)
        num_records = len(self._batch)
        lines = self._parser.line
        yield ColumnPart(self._batch.take(), num_records, lines, total=lines)

    def _drain(
        self, part: FilePart, num_bytes: int, room: Callable[[], int]
    ) -> Generator[ColumnPart, None, None]:
        """Parses all of the block that was fed."""
        parser, context = self._parser, self._context
        before = max(parser.line, part.begin)
        while outcome := parser.parse(self._batch, room()):
            if outcome == _BAD_LINE:
                context.counts.add(bad_lines=1)
                context.bad_lines.take(BadLine(part.path, *parser.bad_line))
            elif outcome == _BATCH_FULL:
                num_records = len(self._batch)
                yield ColumnPart(self._batch.take(), num_records, parser.line)
        context.counts.add(lines=max(parser.line, part.begin) - before, bytes=num_bytes)

    def _complain_of_shorter(self, part: FilePart) -> NoReturn:
        raise InputFileError(
            f"{part.path}: has {self._parser.line} lines, but {part.begin} had been read "
            "when the state was saved: it is another file now"
        )
