"""The bytes of an input file, wherever it comes from."""

from __future__ import annotations

from collections.abc import Generator

from sparsefleet.data.byte_source import compression_of, open_file, read_blocks
from sparsefleet.data.pipe_command import PipeCommand
from sparsefleet.data.record_source import SourceContext


def file_blocks(path: str, context: SourceContext) -> Generator[bytes, None, None]:
    """Decompressed, in blocks: opened, or printed by the command that downloads it."""
    config = context.config
    command = None if config.download is None else config.download(path)
    if command is not None:
        download = PipeCommand(command, path, config.pipe_timeout_s, context.stopped)
        yield from download.blocks(iter(()), config.block_bytes)
        return
    with open_file(path, config.storage_options) as file:
        compression = compression_of(path, config.compression)
        yield from read_blocks(file, path, compression, config.block_bytes)
