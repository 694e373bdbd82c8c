"""Beam search over rows with a LoD, for hand-written loops."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.lowering.body import Held
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer, op_settings
from sparsefleet.fluid.operators.sequences import level_of, segments

__all__ = ["beam_search", "beam_search_decode"]

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
def beam_search_op(
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
    """Select the beam_size best continuations of the prefixes of each source.

    before, before_scores: [N, 1]; ids, scores: candidates [N, C]; without ids, candidates have the
    ids 0, 1, ...
    A finished prefix can only be continued with the end token. A source is dropped once all its
    prefixes are finished.
    """
    sources = _row_offsets(lods[3] or lods[0], level)
    ended = before.reshape(-1) == end_id
    total = scores if is_accumulated else before_scores.reshape(-1, 1) + scores.log()
    count = scores.shape[1]
    words = torch.arange(count).expand_as(scores) if ids is None else ids
    # The first column of a finished prefix represents the end token; other columns cannot be
    # chosen.
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
    """Return the row of the previous step that each word from `beam_search` continues: int32[M]."""
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
    """Return the indices of the candidates chosen for one source, by prefix, best first."""
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
def beam_search_decode_op(
    ids: list[Held], scores: list[Held], *, lods: list[Any], beam_size: int, end_id: int
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """Assemble whole sentences from the words and scores of all steps, best first for each source.

    The LoD of both outputs is source -> sentences, sentence -> words.
    """
    del lods, beam_size
    if not ids or len(ids) != len(scores):
        raise ValueError(
            f"got {len(ids)} steps of ids and {len(scores)} steps of scores, expected the same "
            "number of steps, at least 1"
        )
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
    """Trace back from a source's last words; return each sentence with its scores."""
    found: list[list[tuple[int, float]]] = []
    at: list[int] = []  # the word of each sentence in this step, by row
    for words, scores, (sources, beginnings) in reversed(steps):
        first, last = sources[source], sources[source + 1]
        if not at:  # this source has no later words
            at = list(range(beginnings[first], beginnings[last]))
            found = [[] for _ in at]
        for sentence, row in zip(found, at, strict=True):
            # The end token appears once, no matter how long ago a sentence ended.
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


@layer
def beam_search(
    pre_ids: Variable,
    pre_scores: Variable,
    ids: Variable | None,
    scores: Variable,
    beam_size: int,
    end_id: int,
    level: int = 0,
    is_accumulated: bool = True,
    name: str | None = None,
    return_parent_idx: bool = False,
) -> Any:
    """Return the beam_size best continuations of each source: words and scores [M, 1] with a LoD.

    pre_ids, pre_scores: [N, 1], results of the previous step. ids, scores: candidates [N, C].
    is_accumulated: whether scores cover the whole sentence; otherwise they are word probabilities.
    return_parent_idx: also return the row of pre_ids that each word continues: int32[M].
    """
    helper = LayerHelper("beam_search", name)
    inputs = {
        "pre_ids": helper.check_input(pre_ids, "pre_ids"),
        "pre_scores": helper.check_input(pre_scores, "pre_scores"),
        "ids": ids,
        "scores": helper.check_input(scores, "scores"),
    }
    chosen_scores = helper.new_variable(pre_scores.dtype, lod_level=2)
    chosen = helper.new_variable(pre_ids.dtype, lod_level=2, stop_gradient=True)
    outputs = {"selected_ids": chosen, "selected_scores": chosen_scores}
    attrs = op_settings("beam_search", locals())
    helper.append_op("beam_search", inputs, outputs, attrs)
    if not return_parent_idx:
        return chosen, chosen_scores
    parents = helper.add("beam_parents", {"X": chosen})
    parents.dtype, parents.stop_gradient = "int32", True
    return chosen, chosen_scores, parents


@layer
def beam_search_decode(
    ids: Variable, scores: Variable, beam_size: int, end_id: int, name: str | None = None
) -> tuple[Variable, Variable]:
    """Assemble whole sentences from the arrays of words and scores returned by `beam_search`.

    Returns words and scores with the LoD source -> sentences (best first) -> words.
    """
    helper = LayerHelper("beam_search_decode", name)
    words = helper.new_variable(ids.dtype, lod_level=2, stop_gradient=True)
    marks = helper.new_variable(scores.dtype, lod_level=2, stop_gradient=True)
    inputs = {"Ids": helper.check_input(ids, "ids"), "Scores": helper.check_input(scores, "scores")}
    outputs = {"SentenceIds": words, "SentenceScores": marks}
    attrs = {"beam_size": beam_size, "end_id": end_id}
    helper.append_op("beam_search_decode", inputs, outputs, attrs)
    return words, marks
