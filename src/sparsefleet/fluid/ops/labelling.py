"""Labels along sequences: conditional random fields, and how good chunks are.

Letters: B sequences, T longest, N rows of all of them, D labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.sequences import level_of, segments

Tensor = torch.Tensor
Shape = tuple[int, ...]


class Rows:
    """Sequences beside each other: from rows with a LoD, or padded already with their lengths."""

    def __init__(self, lod: Lod, length: Tensor | None, what: str = "Emission") -> None:
        self._places: tuple[Tensor, Tensor] | None = None
        if length is not None:
            self.lengths = length.reshape(-1).long()
        else:
            offsets = level_of(lod, what)
            which = segments(offsets)
            self.lengths = offsets.diff()
            self._places = (which, torch.arange(len(which)) - offsets[:-1][which])

    def padded(self, x: Tensor) -> Tensor:
        """[B, T, ...]"""
        if self._places is None:
            return x
        count, longest = len(self.lengths), int(self.lengths.max()) if len(self.lengths) else 0
        return x.new_zeros(count, longest, *x.shape[1:]).index_put(self._places, x)

    def rows(self, padded: Tensor) -> Tensor:
        """As they were given."""
        return padded if self._places is None else padded[self._places]


def _costs(x: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del x, others, settings
    return [(-1, 1)]


@op(
    "linear_chain_crf",
    "Emission Transition Label Length?",
    "LogLikelihood",
    lod="function",
    infer=_costs,
)
def linear_chain_crf(
    emission: Tensor,
    transition: Tensor,
    label: Tensor,
    length: Tensor | None,
    *,
    lods: list[Any],
) -> tuple[Tensor, Lod]:
    """What each sequence of labels costs: minus the logarithm of its probability, [B, 1].

    transition: [D + 2, D]: scores of the first label, of the last one, and from label to label.
    """
    rows = Rows(lods[0], length)
    scores = rows.padded(emission)
    labels = rows.padded(
        label.reshape(label.shape[0], -1) if length is not None else label.reshape(-1)
    )
    begin, end, moves = transition[0], transition[1], transition[2:]
    inside = torch.arange(scores.shape[1]) < rows.lengths[:, None]
    # All ways, step by step.
    ways = begin + scores[:, 0]
    for time in range(1, scores.shape[1]):
        longer = torch.logsumexp(ways[:, :, None] + moves, 1) + scores[:, time]
        ways = torch.where(inside[:, time, None], longer, ways)
    every = torch.logsumexp(ways + end, 1)
    # This way.
    steps = scores.gather(2, labels[:, :, None]).squeeze(2)
    steps = steps + torch.cat([begin[labels[:, :1]], moves[labels[:, :-1], labels[:, 1:]]], 1)
    last = labels.gather(1, (rows.lengths - 1).clamp(min=0)[:, None]).squeeze(1)
    taken = (steps * inside).sum(1) + end[last]
    cost = torch.where(rows.lengths > 0, every - taken, torch.zeros_like(every))
    return cost[:, None], ()


@op(
    "crf_decoding",
    "Emission Transition Label? Length?",
    "ViterbiPath",
    lod="function",
    infer=lambda x, *_, **__: [(x[0], x[1] if len(x) == 3 else 1)],
)
@torch.no_grad()
def crf_decoding(
    emission: Tensor,
    transition: Tensor,
    label: Tensor | None,
    length: Tensor | None,
    *,
    lods: list[Any],
) -> tuple[Tensor, Lod]:
    """The likeliest labels, or, beside labels, 1 where they are these: int64[N, 1], or [B, T]."""
    rows = Rows(lods[0], length)
    scores = rows.padded(emission)
    begin, end, moves = transition[0], transition[1], transition[2:]
    inside = torch.arange(scores.shape[1]) < rows.lengths[:, None]
    ways, sources = begin + scores[:, 0], []
    for time in range(1, scores.shape[1]):
        best = (ways[:, :, None] + moves).max(1)
        sources.append(best.indices)
        ways = torch.where(inside[:, time, None], best.values + scores[:, time], ways)
    present = (ways + end).argmax(1)
    path = [present]
    for time in range(scores.shape[1] - 1, 0, -1):
        earlier = sources[time - 1].gather(1, present[:, None]).squeeze(1)
        present = torch.where(inside[:, time], earlier, present)
        path.append(present)
    found = torch.stack(path[::-1], 1) * inside
    given = rows.rows(found)
    given = given if length is not None else given[:, None]
    if label is not None:
        given = (given == label.reshape(given.shape)).long()
        given = given * inside if length is not None else given
    return given, lods[0]


@dataclass(frozen=True)
class _Scheme:
    """How a tag says where in a chunk it is; None: no tag says so."""

    num_tags: int
    begin: int | None = None
    inside: int | None = None
    end: int | None = None
    single: int | None = None

    def parts(self, before: tuple[int, int], tag: tuple[int, int], other: int) -> bool:
        """Whether a chunk ends, or another begins, between two (tag, type) side by side."""
        if before[1] == other or tag[1] == other or before[1] != tag[1]:
            return before[1] != tag[1]
        closed = before[0] in _known(self.end, self.single)
        opened = tag[0] in _known(self.begin, self.single)
        return closed or opened


def _known(*tags: int | None) -> list[int]:
    return [tag for tag in tags if tag is not None]


SCHEMES = {
    "IOB": _Scheme(2, begin=0, inside=1),
    "IOE": _Scheme(2, inside=0, end=1),
    "IOBES": _Scheme(4, begin=0, inside=1, end=2, single=3),
    "plain": _Scheme(1),
}


def _chunks(labels: list[int], scheme: _Scheme, num_types: int) -> set[tuple[int, int, int]]:
    """First place, last place and type of each chunk."""
    pairs = [(label % scheme.num_tags, label // scheme.num_tags) for label in labels]
    found, first = set(), 0
    for place, pair in enumerate(pairs):
        ends = place + 1 == len(pairs) or scheme.parts(pair, pairs[place + 1], num_types)
        if ends:
            if pair[1] != num_types:
                found.add((first, place, pair[1]))
            first = place + 1
    return found


@op(
    "chunk_eval",
    "Inference Label SeqLength?",
    "Precision Recall F1-Score NumInferChunks NumLabelChunks NumCorrectChunks",
    lod="function",
    infer=lambda *_, **__: [(1,)] * 6,
)
def chunk_eval(
    inference: Tensor,
    label: Tensor,
    length: Tensor | None,
    *,
    lods: list[Any],
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: list[int],
) -> tuple[tuple[Tensor, ...], Lod]:
    """How many chunks were found, are there, and are the same; a label is type * tags + tag."""
    scheme, counts = SCHEMES[chunk_scheme], [0, 0, 0]
    pairs = zip(
        _sequences(inference, lods[0] or lods[1], length),
        _sequences(label, lods[1], length),
        strict=True,
    )
    for one, other in pairs:
        found, there = (
            {x for x in _chunks(part, scheme, num_chunk_types) if x[2] not in excluded_chunk_types}
            for part in (one, other)
        )
        for place, chunks in enumerate((found, there, found & there)):
            counts[place] += len(chunks)
    precision, recall = (counts[2] / whole if whole else 0.0 for whole in counts[:2])
    score = 2 * precision * recall / (precision + recall) if counts[2] else 0.0
    marks = [torch.tensor([value]) for value in (precision, recall, score)]
    return (*marks, *[torch.tensor([count]) for count in counts]), ()


def _sequences(labels: Tensor, lod: Lod, length: Tensor | None) -> list[list[int]]:
    if length is not None:
        sizes = length.reshape(-1).tolist()
        whole = labels.reshape(len(sizes), -1).tolist()
        return [part[:size] for part, size in zip(whole, sizes, strict=True)]
    sizes = level_of(lod, "Label").diff().tolist()
    return [part.tolist() for part in labels.reshape(-1).split_with_sizes(sizes)]
