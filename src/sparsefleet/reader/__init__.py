"""Readers of Python data and what is made of them: shuffled, mapped, buffered, batched."""

from sparsefleet.reader.decorators import (
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    shuffle,
)
from sparsefleet.reader.multiprocess import multiprocess_reader
from sparsefleet.reader.resumable import ResumableReader, resumable
from sparsefleet.reader.stages import ComposeNotAligned
from sparsefleet.reader.xmap import xmap_readers

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
