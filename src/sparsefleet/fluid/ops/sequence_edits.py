"""Sequences cut, turned and searched: rows [N, ...] and where they begin."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import Shape, op
from sparsefleet.fluid.ops.sequences import Lods, Made, level_of, offsets_of, segments

Tensor = torch.Tensor


def _same(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [x]


def _open(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del others, settings
    return [(-1, *x[1:])]


def _mask_shape(x: Shape, longest: Shape | None, **settings: Any) -> list[Shape]:
    del longest
    sizes = x[:-1] if len(x) > 1 and x[-1] == 1 and settings.get("drop_last") else x
    return [(*sizes, settings.get("maxlen", -1))]


@op("sequence_mask", "X MaxLenTensor?", "Y", lod="none", infer=_mask_shape)
def sequence_mask(
    x: Tensor, longest: Tensor | None, *, maxlen: int = -1, out_dtype: str = "int64"
) -> Tensor:
    """1 in the first places, so many as x says, then 0: [..., maxlen]."""
    size = int(longest) if longest is not None else maxlen
    if size < 0:
        size = int(x.max()) if x.numel() else 0
    return (torch.arange(size) < x.unsqueeze(-1)).to(getattr(torch, out_dtype))


@op("sequence_reverse", "X", "Y", lod="function", infer=_same)
def sequence_reverse(x: Tensor, *, lods: Lods) -> Made:
    offsets = level_of(lods[0], "X")
    which = segments(offsets)
    rows = offsets[:-1][which] + offsets[1:][which] - 1 - torch.arange(len(x))
    return x[rows], lods[0]


def _windows(x: Shape, **settings: Any) -> list[Shape]:
    return [(x[0], settings["win_size"])]


@op("sequence_enumerate", "X", lod="function", infer=_windows)
def sequence_enumerate(x: Tensor, *, lods: Lods, win_size: int, pad_value: int = 0) -> Made:
    """Each id with those after it in its sequence: [N, win_size]."""
    offsets = level_of(lods[0], "X")
    places = torch.arange(len(x))[:, None] + torch.arange(win_size)
    inside = places < offsets[1:][segments(offsets)][:, None]
    ids = x.reshape(-1)[places.clamp(max=max(len(x) - 1, 0))]
    return torch.where(inside, ids, pad_value), lods[0]


@op("sequence_slice", "X Offset Length", lod="function", infer=_open)
def sequence_slice(x: Tensor, offset: Tensor, length: Tensor, *, lods: Lods) -> Made:
    """A part of each sequence, from its own offset on."""
    offsets = level_of(lods[0], "X")
    starts, sizes = offset.reshape(-1).long(), length.reshape(-1).long()
    if len(starts) != len(offsets) - 1 or len(sizes) != len(offsets) - 1:
        raise ValueError(f"{len(offsets) - 1} sequences, but {len(starts)} offsets")
    if bool(((starts < 0) | (sizes < 0) | (starts + sizes > offsets.diff())).any()):
        raise ValueError(
            f"offset {starts.tolist()} and length {sizes.tolist()} leave sequences of length "
            f"{offsets.diff().tolist()}"
        )
    made = offsets_of(sizes)
    begin = torch.repeat_interleave(offsets[:-1] + starts - made[:-1], sizes)
    return x[begin + torch.arange(int(made[-1]))], (made,)


@op("sequence_scatter", "X Ids Updates", lod="function", infer=_same)
def sequence_scatter(x: Tensor, ids: Tensor, updates: Tensor, *, lods: Lods) -> Made:
    """Adds the updates of sequence i to row i of x, at the columns in ids."""
    rows = segments(level_of(lods[1], "Ids"))
    columns = ids.reshape(-1).long()
    return x.index_put((rows, columns), updates.reshape(-1), accumulate=True), ()


@op("row_conv", "X Filter", lod="function", infer=_same)
def row_conv(x: Tensor, weight: Tensor, *, lods: Lods) -> Made:
    """Each row and those after it in the sequence, each with its own weights [K, D]."""
    if x.dim() == 3:  # sequences of one length
        padded = torch.nn.functional.pad(x, [0, 0, 0, len(weight) - 1])
        total = sum(padded[:, shift : shift + x.shape[1]] * row for shift, row in enumerate(weight))
        return total, ()
    offsets = level_of(lods[0], "X")
    ends = offsets[1:][segments(offsets)]
    rows = torch.arange(len(x))
    total = torch.zeros_like(x)
    for shift, row in enumerate(weight):
        places = rows + shift
        inside = (places < ends)[:, None]
        total = total + x[places.clamp(max=max(len(x) - 1, 0))] * row * inside
    return total, lods[0]


@op("lod_append", "X Y?", lod="function", infer=_open)
def lod_append(x: Tensor, y: Tensor | None, *, lods: Lods, level: list[int] | None = None) -> Made:
    """With one more level, which cuts what was lowest so far into parts."""
    if y is None:
        return x, (*lods[0], torch.tensor(level, dtype=torch.int64))
    return x, (*lods[0], *(lods[1] or (y.reshape(-1).long(),)))


@op("add_position_encoding", "X", lod="function", infer=_same)
def add_position_encoding(x: Tensor, *, lods: Lods, alpha: float, beta: float) -> Made:
    """x * alpha plus beta times sines and cosines of the places of rows (Vaswani et al., 2017)."""
    half = x.shape[-1] // 2
    if x.dim() == 2:
        offsets = level_of(lods[0], "X")
        places = torch.arange(len(x)) - offsets[:-1][segments(offsets)]
    else:
        places = torch.arange(x.shape[1])
    powers = torch.arange(half) / (half - 1) if half > 1 else torch.ones(half)
    angles = places[:, None] / torch.pow(torch.tensor(10000.0), powers)
    waves = torch.cat([torch.sin(angles), torch.cos(angles)], -1).to(x.dtype)
    return x * alpha + waves * beta, lods[0]


def _im2sequence_shape(x: Shape, **settings: Any) -> list[Shape]:
    height, width = settings["kernels"]
    return [(-1, x[1] * height * width)]


@op("im2sequence", "X", lod="function", infer=_im2sequence_shape)
def im2sequence(
    x: Tensor, *, lods: Lods, kernels: list[int], strides: list[int], paddings: list[int]
) -> Made:
    """Windows of each picture, row by row, as one sequence. paddings: above, left, below, right."""
    del lods
    above, left, below, right = paddings
    padded = torch.nn.functional.pad(x, [left, right, above, below])
    columns = torch.nn.functional.unfold(padded, tuple(kernels), stride=tuple(strides))
    rows = columns.transpose(1, 2).reshape(-1, columns.shape[1])
    return rows, (torch.arange(len(x) + 1) * columns.shape[2],)


def _column(x: Shape, **settings: Any) -> list[Shape]:
    del x, settings
    return [(-1, 1)]


def _greedy_shape(x: Shape, length: Shape, **settings: Any) -> list[Shape]:
    del length, settings
    return [x[:2], (x[0], 1)]


@op("ctc_greedy", "X", lod="function", infer=_column)
def ctc_greedy(x: Tensor, *, lods: Lods, blank: int) -> Made:
    """The best class of each row, once if it is repeated, blanks left out; -1 if all are."""
    offsets = level_of(lods[0], "X")
    best = torch.split_with_sizes(x.argmax(1), offsets.diff().tolist())
    kept = [_without_repeats(part, blank) for part in best]
    lengths = torch.tensor([len(part) for part in kept])
    if not int(lengths.sum()):
        return torch.full((1, 1), -1), (offsets_of(lengths),)
    return torch.cat(kept)[:, None], (offsets_of(lengths),)


@op("ctc_greedy_padded", "X Length", "Out OutLength", lod="none", infer=_greedy_shape)
def ctc_greedy_padded(
    x: Tensor, length: Tensor, *, blank: int, padding_value: int = 0
) -> list[Tensor]:
    """As `ctc_greedy` of [B, T, C]: [B, T] filled up, and the lengths [B, 1]."""
    best, sizes = x.argmax(2), length.reshape(-1).tolist()
    kept = [_without_repeats(row[:size], blank) for row, size in zip(best, sizes, strict=True)]
    out = torch.full_like(best, padding_value)
    for row, part in zip(out, kept, strict=True):
        row[: len(part)] = part
    return [out, torch.tensor([[len(part)] for part in kept])]


def _without_repeats(best: Tensor, blank: int) -> Tensor:
    once = torch.unique_consecutive(best)
    kept: Tensor = once[once != blank]
    return kept
