"""Readers for Python data and their decorators: shuffle, map, buffer, batch."""

from sparsefleet.fluid.paddle.reader.background import xmap_readers
from sparsefleet.fluid.paddle.reader.decorators import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
)
from sparsefleet.fluid.paddle.reader.multiprocess import multiprocess_reader
from sparsefleet.fluid.paddle.reader.resumable import ResumableReader, resumable

__all__ = [
    "ComposeNotAligned",
    "ResumableReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "map_readers",
    "multiprocess_reader",
    "resumable",
    "shuffle",
    "xmap_readers",
]
