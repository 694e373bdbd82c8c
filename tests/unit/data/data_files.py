"""Files for the tests of readers: one id per record, so that records can be told apart."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparsefleet.data import MultiSlot, Reader, Slot

ONE_ID = MultiSlot(Slot("id", "uint64", ()))


def lines_of(ids: Iterable[int]) -> str:
    return "".join(f"1 {number}\n" for number in ids)


def write_ids(path: Path, ids: Iterable[int]) -> Path:
    path.write_text(lines_of(ids))
    return path


def read_ids(reader: Reader) -> list[int]:
    return [int(number) for batch in reader for number in batch["id"]]
