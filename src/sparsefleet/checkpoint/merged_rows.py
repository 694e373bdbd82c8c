"""Merge the rows of a full checkpoint and its deltas, keeping the newest row for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sparsefleet.checkpoint.manifest import TableEntry
from sparsefleet.checkpoint.row_chunk import RowChunk, RowLayout, shard_of

if TYPE_CHECKING:
    from sparsefleet.checkpoint.checkpoint import Checkpoint

__all__ = ["find_in", "merged_rows"]

Keys = NDArray[np.uint64]
Keep = Callable[[Keys], "NDArray[np.bool_] | None"]
Links = list[tuple["Checkpoint", TableEntry]]


def merged_rows(
    chain: Sequence[Checkpoint], table: str, shard: tuple[int, int] | None, columns: Sequence[str]
) -> Iterator[RowChunk]:
    """Yield the rows of a table in a chain of checkpoints, newest first.

    If all checkpoints in the chain were written by the same number of servers, a key is in the same
    shard of each. Shards are then merged one at a time, with only one shard's keys in memory.
    """
    links: Links = []
    for checkpoint in chain:
        known = {entry.name: entry for entry in checkpoint.manifest.tables}
        if table not in known:
            break  # the table is new in the previous link
        if links:
            known[table].require_same(links[0][1], checkpoint.path, in_a_delta=True)
        links.append((checkpoint, known[table]))
    numbers = {entry.num_shards for _, entry in links}
    if len(numbers) > 1:
        yield from _merge(links, None, _keep_shard(shard), columns)
        return
    num_shards = numbers.pop()
    if shard is not None and shard[1] == num_shards:
        yield from _merge(links, shard[0], _keep_all, columns)
        return
    for index in range(num_shards):
        yield from _merge(links, index, _keep_shard(shard), columns)


def _keep_all(_: Keys) -> None:
    return None


def _keep_shard(shard: tuple[int, int] | None) -> Keep:
    if shard is None or shard[1] <= 1:
        return _keep_all
    return lambda keys: shard_of(keys, shard[1]) == shard[0]


def _merge(
    links: Links, shard: int | None, keep: Keep, columns: Sequence[str]
) -> Iterator[RowChunk]:
    """Yield the rows of a chain, newest checkpoint first, without keys that a newer one has."""
    settled = np.empty(0, np.uint64)
    for place, (checkpoint, entry) in enumerate(links):
        is_last = place + 1 == len(links)
        met: list[Keys] = []
        for chunk in _own_rows(checkpoint, entry, shard, columns):
            wanted = keep(chunk.keys)
            kept = chunk if wanted is None else chunk.only(wanted)
            if len(settled):
                kept = kept.only(~find_in(settled, kept.keys)[1])
            if not is_last:
                met.append(kept.keys)
            if len(kept.keys):
                yield kept
        if not is_last:
            met += _removed_keys(checkpoint, entry, shard, keep)
            settled = np.concatenate([settled, *met])
            settled.sort()


def find_in(ordered: Keys, keys: Keys) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return the position of each key in `ordered`, and whether it was found."""
    if not len(ordered):
        return np.zeros(len(keys), np.intp), np.zeros(len(keys), np.bool_)
    places = np.searchsorted(ordered, keys)
    places[places == len(ordered)] = 0
    return places, ordered[places] == keys


def _own_rows(
    checkpoint: Checkpoint, entry: TableEntry, shard: int | None, columns: Sequence[str]
) -> Iterator[RowChunk]:
    from sparsefleet.checkpoint.row_file_reader import read_row_file  # imports pyarrow

    for file in entry.files:
        if shard is None or file.shard == shard:
            checkpoint.check_file(file)
            yield from read_row_file(checkpoint.folder, file, RowLayout.of(entry), columns)


def _removed_keys(
    checkpoint: Checkpoint, entry: TableEntry, shard: int | None, keep: Keep
) -> Iterator[Keys]:
    from sparsefleet.checkpoint.row_file_reader import read_keys  # imports pyarrow

    for file in entry.removed:
        if shard is None or file.shard == shard:
            checkpoint.check_file(file)
            for keys in read_keys(checkpoint.folder, file):
                wanted = keep(keys)
                yield keys if wanted is None else keys[wanted]
