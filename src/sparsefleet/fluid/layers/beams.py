"""Beam search by rows with a LoD, for loops written by hand."""

from __future__ import annotations

from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer

__all__ = ["beam_search", "beam_search_decode"]


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
    """The beam_size best ways to go on of each source: words and scores [M, 1] with a LoD.

    pre_ids, pre_scores: [N, 1], what the step before gave. ids, scores: candidates [N, C].
    is_accumulated: scores are those of the whole sentence; else probabilities of the word.
    return_parent_idx: also the row of pre_ids that each goes on from: int32[M].
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
    attrs = {
        "level": level,
        "beam_size": beam_size,
        "end_id": end_id,
        "is_accumulated": is_accumulated,
    }
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
    """Whole sentences from the arrays of words and scores that `beam_search` gave.

    Words and scores, with the LoD source -> sentences (the best first) -> words.
    """
    helper = LayerHelper("beam_search_decode", name)
    words = helper.new_variable(ids.dtype, lod_level=2, stop_gradient=True)
    marks = helper.new_variable(scores.dtype, lod_level=2, stop_gradient=True)
    inputs = {"Ids": helper.check_input(ids, "ids"), "Scores": helper.check_input(scores, "scores")}
    outputs = {"SentenceIds": words, "SentenceScores": marks}
    attrs = {"beam_size": beam_size, "end_id": end_id}
    helper.append_op("beam_search_decode", inputs, outputs, attrs)
    return words, marks
