"""Compute XXH32 and XXH64 (Yann Collet's xxHash) for many short rows of bytes at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(number)
    for number in (
        11400714785074694791,
        14029467366897019727,
        1609587929392839161,
        9650029242287828579,
        2870177450012600261,
    )
)
Numbers = NDArray[Any]


def xxhash64(rows: NDArray[np.uint8], seed: int = 0) -> Numbers:
    """Return each row's hash: uint8[N, K] -> uint64[N].

    >>> hex(xxhash64(np.frombuffer(b"abc", dtype=np.uint8)[None])[0])
    '0x44bc2cf5ad770999'
    """
    size = rows.shape[1]
    start = np.uint64(seed)
    with np.errstate(over="ignore"):
        if size >= 32:
            total, at = _stripes(rows, start)
        else:
            total, at = np.full(len(rows), start + _P5), 0
        total = total + np.uint64(size)
        while at + 8 <= size:
            word = _words(rows[:, at : at + 8], 8)
            total = _turn(total ^ _round(np.zeros_like(total), word), 27) * _P1 + _P4
            at += 8
        if at + 4 <= size:
            word = _words(rows[:, at : at + 4], 4)
            total = _turn(total ^ (word * _P1), 23) * _P2 + _P3
            at += 4
        for place in range(at, size):
            total = _turn(total ^ (rows[:, place].astype(np.uint64) * _P5), 11) * _P1
        total = (total ^ (total >> np.uint64(33))) * _P2
        total = (total ^ (total >> np.uint64(29))) * _P3
        found: Numbers = total ^ (total >> np.uint64(32))
        return found


def _stripes(rows: NDArray[np.uint8], seed: np.uint64) -> tuple[Numbers, int]:
    """Return the state after all whole 32-byte stripes, and the number of bytes consumed."""
    count = len(rows)
    firsts = (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)
    lanes = [np.full(count, first) for first in firsts]
    at = 0
    while at + 32 <= rows.shape[1]:
        for place in range(4):
            begin = at + 8 * place
            lanes[place] = _round(lanes[place], _words(rows[:, begin : begin + 8], 8))
        at += 32
    total = np.zeros(count, np.uint64)
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        total = total + _turn(lane, bits)
    for lane in lanes:
        total = (total ^ _round(np.zeros_like(lane), lane)) * _P1 + _P4
    return total, at


def _round(state: Numbers, word: Numbers) -> Numbers:
    made: Numbers = _turn(state + word * _P2, 31) * _P1
    return made


def _turn(word: Numbers, bits: int) -> Numbers:
    made: Numbers = (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))
    return made


def _words(part: NDArray[np.uint8], width: int) -> Numbers:
    kind = "<u8" if width == 8 else "<u4"
    return np.ascontiguousarray(part).view(kind)[:, 0].astype(np.uint64)


_Q1, _Q2, _Q3, _Q4, _Q5 = (
    np.uint32(number) for number in (2654435761, 2246822519, 3266489917, 668265263, 374761393)
)


def xxhash32(rows: NDArray[np.uint8], seed: int = 0) -> Numbers:
    """Return each row's 32-bit hash: uint8[N, K] -> uint32[N]; K must be a multiple of 4.

    >>> hex(xxhash32(np.frombuffer(b"abcd", dtype=np.uint8)[None])[0])
    '0xa3643705'
    """
    if rows.shape[1] % 4:
        raise ValueError(f"the row size must be a multiple of 4 bytes, got {rows.shape[1]}")
    words = np.ascontiguousarray(rows).view("<u4").astype(np.uint32)
    start = np.uint32(seed)
    with np.errstate(over="ignore"):
        at = 0
        total = np.full(len(rows), start + _Q5)
        if words.shape[1] >= 4:
            lanes = [
                np.full(len(rows), first)
                for first in (start + _Q1 + _Q2, start + _Q2, start, start - _Q1)
            ]
            while at + 4 <= words.shape[1]:
                for place in range(4):
                    lanes[place] = _turn32(lanes[place] + words[:, at + place] * _Q2, 13) * _Q1
                at += 4
            turned = [_turn32(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)]
            total = turned[0] + turned[1] + turned[2] + turned[3]
        total = total + np.uint32(rows.shape[1])
        for place in range(at, words.shape[1]):
            total = _turn32(total + words[:, place] * _Q3, 17) * _Q4
        total = (total ^ (total >> np.uint32(15))) * _Q2
        total = (total ^ (total >> np.uint32(13))) * _Q3
        found: Numbers = total ^ (total >> np.uint32(16))
        return found


def _turn32(word: Numbers, bits: int) -> Numbers:
    made: Numbers = (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))
    return made
