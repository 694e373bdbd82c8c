"""Beam search over rows with a LoD: source -> beginnings, beginning -> words chosen for it."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.body import Held
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.sequences import level_of, segments

Tensor = torch.Tensor
Shape = tuple[int, ...]


def _columns(*shapes: Any, **settings: Any) -> list[Shape]:
    del shapes, settings
    return [(-1, 1), (-1, 1)]


@op(
    "beam_search",
    "pre_ids pre_scores ids? scores",
    "selected_ids selected_scores",
    lod="function",
    infer=_columns,
)
def beam_search(
    before: Tensor,
    before_scores: Tensor,
    ids: Tensor | None,
    scores: Tensor,
    *,
    lods: list[Any],
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
) -> tuple[tuple[Tensor, ...], Lod]:
    """The beam_size best ways to go on from the beginnings of each source.

    before, before_scores: [N, 1]; ids, scores: candidates [N, C], numbered 0, 1, ... without ids.
    A beginning that ended goes on with the end alone; a source of which all have ended is left.
    """
    sources = _row_offsets(lods[3] or lods[0], level)
    ended = before.reshape(-1) == end_id
    total = scores if is_accumulated else before_scores.reshape(-1, 1) + scores.log()
    count = scores.shape[1]
    words = torch.arange(count).expand_as(scores) if ids is None else ids
    # The first column of an ended beginning stands for the end, the others cannot be chosen.
    words = torch.where(ended[:, None], end_id, words)
    alone = torch.full_like(total, -torch.inf)
    alone[:, 0] = before_scores.reshape(-1)
    total = torch.where(ended[:, None], alone, total)
    chosen = [
        _chosen(total, words, ended, begin, end, beam_size, end_id)
        for begin, end in zip(sources[:-1].tolist(), sources[1:].tolist(), strict=True)
    ]
    places = torch.cat(chosen)
    rows = places // count
    offsets = torch.cat([rows.new_zeros(1), rows.bincount(minlength=len(scores)).cumsum(0)])
    picked = words.reshape(-1)[places].reshape(-1, 1), total.reshape(-1)[places].reshape(-1, 1)
    return picked, (sources, offsets)


@op("beam_parents", "X", lod="function", infer=lambda *_: [(-1,)])
def beam_parents(ids: Tensor, *, lods: list[Any]) -> Held:
    """The row of the step before that each word of `beam_search` goes on from: int32[M]."""
    del ids
    return segments(level_of(lods[0], "X")).int(), ()


def _row_offsets(lod: Lod, level: int) -> Tensor:
    offsets = level_of(lod, "scores", level)
    for below in lod[level + 1 :]:
        offsets = below[offsets]
    return offsets


def _chosen(
    total: Tensor, words: Tensor, ended: Tensor, begin: int, end: int, beam_size: int, end_id: int
) -> Tensor:
    """Numbers of the candidates chosen for one source, by beginning, the best first."""
    count = total.shape[1]
    candidates = total[begin:end].reshape(-1)
    best = candidates.topk(min(beam_size, len(candidates)))
    places = best.indices[best.values > -torch.inf]
    rows = places // count + begin
    if bool((ended[rows] & (words.reshape(-1)[places + begin * count] == end_id)).all()):
        return places[:0]
    return places[torch.argsort(rows, stable=True)] + begin * count


@op(
    "beam_search_decode",
    "Ids Scores",
    "SentenceIds SentenceScores",
    lod="function",
    infer=lambda *_, **__: [(-1,), (-1,)],
)
def beam_search_decode(
    ids: list[Held], scores: list[Held], *, lods: list[Any], beam_size: int, end_id: int
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """Whole sentences, the best of each source first, from the arrays of all steps.

    The LoD of both: source -> sentences, sentence -> words.
    """
    del lods, beam_size
    if not ids or len(ids) != len(scores):
        raise ValueError(f"{len(ids)} steps of ids, {len(scores)} of scores: wanted the same, > 0")
    steps = [
        (value.reshape(-1).tolist(), score.reshape(-1).tolist(), [x.tolist() for x in lod])
        for (value, lod), (score, _) in zip(ids, scores, strict=True)
    ]
    sentences = [_sentences(steps, source, end_id) for source in range(len(steps[0][2][0]) - 1)]
    flat = [sentence for group in sentences for sentence in group]
    words = [word for sentence in flat for word, _ in sentence]
    marks = [mark for sentence in flat for _, mark in sentence]
    levels = (_offsets([len(group) for group in sentences]), _offsets([len(x) for x in flat]))
    kind = scores[0][0].dtype
    return (torch.tensor(words, dtype=torch.int64), torch.tensor(marks, dtype=kind)), levels


def _offsets(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def _sentences(steps: list[Any], source: int, end_id: int) -> list[list[tuple[int, float]]]:
    """Walks back from the last words of a source; each sentence with the scores on its way."""
    found: list[list[tuple[int, float]]] = []
    at: list[int] = []  # the word of each sentence in the step, by row
    for words, scores, (sources, beginnings) in reversed(steps):
        first, last = sources[source], sources[source + 1]
        if not at:  # nothing of this source was chosen later
            at = list(range(beginnings[first], beginnings[last]))
            found = [[] for _ in at]
        for sentence, row in zip(found, at, strict=True):
            # The end is said once, however long ago a sentence ended.
            if words[row] != end_id or not sentence:
                sentence.append((words[row], scores[row]))
        parent = [
            beginning
            for beginning in range(first, last)
            for _ in range(beginnings[beginning], beginnings[beginning + 1])
        ]
        at = [parent[row - beginnings[first]] for row in at]
    found.sort(key=lambda sentence: -sentence[0][1])
    return [sentence[::-1] for sentence in found]
