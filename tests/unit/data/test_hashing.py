from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparsefleet.data import hash64, hash_ids
from sparsefleet.errors import ConfigError

MASK = 2**64 - 1
P1, P2, P3, P4, P5 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)


def rotate(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & MASK


def round_of(lane: int, word: int) -> int:
    return rotate((lane + word * P2) & MASK, 31) * P1 & MASK


def documented_hash(data: bytes, seed: int) -> int:
    """The hash as docs/data.md describes it, step by step."""
    at = 0
    if len(data) >= 32:
        lanes = [(seed + P1 + P2) & MASK, (seed + P2) & MASK, seed, (seed - P1) & MASK]
        while len(data) - at >= 32:
            for i in range(4):
                word = int.from_bytes(data[at : at + 8], "little")
                lanes[i] = round_of(lanes[i], word)
                at += 8
        turns = zip(lanes, (1, 7, 12, 18), strict=True)
        h = sum(rotate(lane, by) for lane, by in turns) & MASK
        for lane in lanes:
            h = ((h ^ round_of(0, lane)) * P1 + P4) & MASK
    else:
        h = (seed + P5) & MASK
    h = (h + len(data)) & MASK
    while len(data) - at >= 8:
        h ^= round_of(0, int.from_bytes(data[at : at + 8], "little"))
        h = (rotate(h, 27) * P1 + P4) & MASK
        at += 8
    if len(data) - at >= 4:
        h ^= int.from_bytes(data[at : at + 4], "little") * P1 & MASK
        h = (rotate(h, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotate(h ^ (byte * P5 & MASK), 11) * P1 & MASK
    h = (h ^ (h >> 33)) * P2 & MASK
    h = (h ^ (h >> 29)) * P3 & MASK
    return h ^ (h >> 32)


@given(st.binary(max_size=150), st.integers(0, MASK))
def test_hash_is_the_documented_one(data: bytes, seed: int) -> None:
    assert hash64(data, seed) == documented_hash(data, seed)


def test_text_is_hashed_as_utf_8() -> None:
    assert hash64("größe") == hash64("größe".encode())


def test_ids_are_the_hashes_by_bit_pattern() -> None:
    ids = hash_ids(["a", b"a", "b"], seed=7)
    assert ids.dtype == np.int64
    assert ids.view(np.uint64).tolist() == [hash64("a", 7), hash64("a", 7), hash64("b", 7)]
    assert len(hash_ids([])) == 0


def test_another_process_has_the_same_hash() -> None:
    script = "from sparsefleet.data import hash64; print(hash64('68fd1e64', 3))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120)
    assert int(done.stdout) == hash64("68fd1e64", 3)


def test_values_that_are_not_text_are_refused_with_their_type() -> None:
    with pytest.raises(ConfigError, match="str or bytes, got a int"):
        hash64(5)  # type: ignore[arg-type]
