"""Sequence labeling: CRF, chunks, CTC and edit distance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.operators.layer_helper import LayerHelper, layer
from sparsefleet.fluid.operators.sequences import level_of, segments

__all__ = ["chunk_eval", "crf_decoding", "edit_distance", "linear_chain_crf", "warpctc"]


# Sequence labels, with conditional random fields and chunk evaluation.
#
# In shapes, B is the number of sequences, T the longest length, N the number of rows in all
# sequences, D the number of labels.


Tensor = torch.Tensor
Shape = tuple[int, ...]


class Rows:
    """Padded sequences, built from rows with a LoD or from padded values with lengths."""

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
        """Return the values as padded sequences: [B, T, ...]."""
        if self._places is None:
            return x
        count, longest = len(self.lengths), int(self.lengths.max()) if len(self.lengths) else 0
        return x.new_zeros(count, longest, *x.shape[1:]).index_put(self._places, x)

    def rows(self, padded: Tensor) -> Tensor:
        """Return the values in their original layout."""
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
def linear_chain_crf_op(
    emission: Tensor,
    transition: Tensor,
    label: Tensor,
    length: Tensor | None,
    *,
    lods: list[Any],
) -> tuple[Tensor, Lod]:
    """Return the cost (negative log probability) of each label sequence: [B, 1].

    transition: [D + 2, D], the scores of each label as the first, as the last, and of transitions
        between labels.
    """
    rows = Rows(lods[0], length)
    scores = rows.padded(emission)
    labels = rows.padded(
        label.reshape(label.shape[0], -1) if length is not None else label.reshape(-1)
    )
    begin, end, moves = transition[0], transition[1], transition[2:]
    inside = torch.arange(scores.shape[1]) < rows.lengths[:, None]
    # Sum over all paths, step by step.
    ways = begin + scores[:, 0]
    for time in range(1, scores.shape[1]):
        longer = torch.logsumexp(ways[:, :, None] + moves, 1) + scores[:, time]
        ways = torch.where(inside[:, time, None], longer, ways)
    every = torch.logsumexp(ways + end, 1)
    # This path.
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
def crf_decoding_op(
    emission: Tensor,
    transition: Tensor,
    label: Tensor | None,
    length: Tensor | None,
    *,
    lods: list[Any],
) -> tuple[Tensor, Lod]:
    """Return the most likely labels or, given labels, 1 where they match: int64[N, 1] or [B, T]."""
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
    """A chunk scheme: the tags for positions in a chunk, each None if the scheme does not use
    it.
    """

    num_tags: int
    begin: int | None = None
    inside: int | None = None
    end: int | None = None
    single: int | None = None

    def parts(self, before: tuple[int, int], tag: tuple[int, int], other: int) -> bool:
        """Return whether two adjacent (tag, type) pairs belong to different chunks."""
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
    """Return the first position, last position and type of each chunk."""
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
def chunk_eval_op(
    inference: Tensor,
    label: Tensor,
    length: Tensor | None,
    *,
    lods: list[Any],
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: list[int],
) -> tuple[tuple[Tensor, ...], Lod]:
    """Count the inferred, labeled and correct chunks. A label is type * (number of tags) + tag."""
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


@layer
def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None
) -> Variable:
    """Return the cost of each label sequence under a conditional random field: [B, 1].

    input: [N, D] with a LoD, or [B, T, D] with length int64[B, 1]; label: int64 [N, 1] or [B, T].
    The parameter [D + 2, D] holds the scores of each label as the first, as the last, and of
    transitions between labels.
    """
    helper = LayerHelper("linear_chain_crf")
    known = to_param_attr(param_attr)
    if known is None:
        raise helper.refuse("param_attr cannot be False")
    size = helper.check_input(input).shape[-1]
    inputs = {
        "Emission": input,
        "Transition": helper.create_parameter(known, [size + 2, size], input.dtype),
        "Label": helper.check_input(label, "label"),
        "Length": length,
    }
    made = helper.add("linear_chain_crf", inputs, slot="LogLikelihood")
    made.dtype = input.dtype
    return made


@layer
def crf_decoding(
    input: Variable,
    param_attr: Any,
    label: Variable | None = None,
    length: Variable | None = None,
) -> Variable:
    """Return the most likely labels int64 [N, 1] or [B, T]; given `label`, 1 where they match.

    param_attr: the name of `linear_chain_crf`'s parameter.
    """
    helper = LayerHelper("crf_decoding")
    known = to_param_attr(param_attr)
    if known is None or known.name is None:
        raise helper.refuse("param_attr must name linear_chain_crf's parameter")
    transition = helper.main_program.global_block().var(known.name)
    inputs = {
        "Emission": helper.check_input(input),
        "Transition": transition,
        "Label": label,
        "Length": length,
    }
    made = helper.add("crf_decoding", inputs, slot="ViterbiPath")
    made.dtype, made.lod_level, made.stop_gradient = "int64", input.lod_level, True
    return made


@layer
def chunk_eval(
    input: Variable,
    label: Variable,
    chunk_scheme: str,
    num_chunk_types: int,
    excluded_chunk_types: Sequence[int] | None = None,
    seq_length: Variable | None = None,
) -> tuple[Variable, ...]:
    """Return precision, recall, F1, and the numbers of inferred, labeled and correct chunks: [1]
    each.

    chunk_scheme: IOB, IOE, IOBES or plain. A label is type * (number of tags in the scheme) + tag;
        the next number after the last label means outside all chunks.
    """
    helper = LayerHelper("chunk_eval")
    if chunk_scheme not in SCHEMES:
        raise helper.refuse(
            f"chunk_scheme must be one of {', '.join(SCHEMES)}, got {chunk_scheme!r}"
        )
    inputs = {
        "Inference": helper.check_input(input),
        "Label": helper.check_input(label, "label"),
        "SeqLength": seq_length,
    }
    marks = [helper.new_variable("float32", stop_gradient=True) for _ in range(3)]
    counts = [helper.new_variable("int64", stop_gradient=True) for _ in range(3)]
    slots = ("Precision", "Recall", "F1-Score")
    count_slots = ("NumInferChunks", "NumLabelChunks", "NumCorrectChunks")
    outputs = dict(zip((*slots, *count_slots), (*marks, *counts), strict=True))
    attrs = {
        "chunk_scheme": chunk_scheme,
        "num_chunk_types": num_chunk_types,
        "excluded_chunk_types": list(excluded_chunk_types or ()),
    }
    helper.append_op("chunk_eval", inputs, outputs, attrs)
    return (*marks, *counts)


@op(
    "warpctc",
    "Logits Label LogitsLength? LabelLength?",
    "Loss",
    lod="function",
    infer=lambda *_, **__: [(-1, 1)],
)
def warpctc_op(
    logits: Tensor,
    label: Tensor,
    frames: Tensor | None,
    symbols: Tensor | None,
    *,
    lods: list[Any],
    blank: int = 0,
    norm_by_times: bool = False,
) -> tuple[Tensor, Lod]:
    """Return the negative log probability of each text: [B, 1].

    logits: [N, C] with a LoD, or [T, B, C]; label: [M, 1] with a LoD, or [B, L].
    norm_by_times: divide gradients by the number of frames.
    """
    rows = Rows(lods[0], frames, "Logits")
    texts = Rows(lods[1], symbols, "Label")
    steps = logits if frames is not None else rows.padded(logits).transpose(0, 1)
    targets = label if symbols is not None else texts.padded(label.reshape(-1))
    loss = functional.ctc_loss(
        steps.log_softmax(-1),
        targets.long(),
        rows.lengths,
        texts.lengths,
        blank=blank,
        reduction="none",
    )
    if norm_by_times:
        fixed = loss.detach()
        loss = fixed + (loss - fixed) / rows.lengths.to(loss.dtype)
    return loss[:, None], ()


@op(
    "edit_distance",
    "Hyps Refs HypsLength? RefsLength?",
    "Out SequenceNum",
    lod="function",
    infer=lambda *_, **__: [(-1, 1), (1,)],
)
def edit_distance_op(
    found: Tensor,
    wanted: Tensor,
    found_length: Tensor | None,
    wanted_length: Tensor | None,
    *,
    lods: list[Any],
    normalized: bool = True,
    ignored_tokens: list[int],
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """Count the edits (insertions, deletions, substitutions) from each text to its reference: [B,
    1].

    Also returns the number of texts, B: [1].

    normalized: divide by the length of the reference.
    """
    pairs = list(
        zip(
            _texts(found, lods[0], found_length, ignored_tokens, "Hyps"),
            _texts(wanted, lods[1], wanted_length, ignored_tokens, "Refs"),
            strict=True,
        )
    )
    distances = []
    for number, (text, reference) in enumerate(pairs):
        if normalized and not reference:
            raise ValueError(
                f"reference {number} is empty, so the edit distance cannot be normalized"
            )
        distances.append(_distance(text, reference) / (len(reference) if normalized else 1))
    return (torch.tensor(distances).reshape(-1, 1), torch.tensor([len(pairs)])), ()


def _texts(
    x: Tensor, lod: Lod, length: Tensor | None, ignored: list[int], what: str
) -> list[list[int]]:
    rows = Rows(lod, length, what)
    padded = rows.padded(x if length is not None else x.reshape(-1))
    return [
        [symbol for symbol in text[:size] if symbol not in ignored]
        for text, size in zip(padded.tolist(), rows.lengths.tolist(), strict=True)
    ]


def _distance(one: list[int], other: list[int]) -> float:
    """Return the Levenshtein distance."""
    before = list(range(len(other) + 1))
    for row, symbol in enumerate(one, 1):
        present = [row]
        for column, wanted in enumerate(other, 1):
            changed = before[column - 1] + (symbol != wanted)
            present.append(min(changed, before[column] + 1, present[-1] + 1))
        before = present
    return float(before[-1])


@layer
def warpctc(
    input: Variable,
    label: Variable,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> Variable:
    """Return the connectionist temporal classification loss (Graves et al. 2006): [B, 1].

    input: logits [N, C] with a LoD, or [T, B, C] with input_length; label: int [M, 1] with a LoD,
    or [B, L] with label_length. norm_by_times: divide gradients by the number of frames.
    """
    helper = LayerHelper("warpctc")
    if (input_length is None) != (label_length is None):
        raise helper.refuse("pass both input_length and label_length, or neither")
    inputs = {
        "Logits": helper.check_input(input),
        "Label": helper.check_input(label, "label"),
        "LogitsLength": input_length,
        "LabelLength": label_length,
    }
    attrs = {"blank": blank, "norm_by_times": norm_by_times}
    made = helper.add("warpctc", inputs, attrs, slot="Loss")
    made.dtype = input.dtype
    return made


@layer
def edit_distance(
    input: Variable,
    label: Variable,
    normalized: bool = True,
    ignored_tokens: Sequence[int] | None = None,
    input_length: Variable | None = None,
    label_length: Variable | None = None,
) -> tuple[Variable, Variable]:
    """Return the edit distance from input to label for each text, [B, 1], and the number of texts,
    [1].

    Both are int64 [N, 1] with a LoD, or [B, T] with their lengths. normalized: divide by the
    label's length.
    """
    helper = LayerHelper("edit_distance")
    if (input_length is None) != (label_length is None):
        raise helper.refuse("pass both input_length and label_length, or neither")
    inputs = {
        "Hyps": helper.check_input(input),
        "Refs": helper.check_input(label, "label"),
        "HypsLength": input_length,
        "RefsLength": label_length,
    }
    out = helper.new_variable("float32", stop_gradient=True)
    count = helper.new_variable("int64", stop_gradient=True)
    attrs = {"normalized": normalized, "ignored_tokens": list(ignored_tokens or ())}
    helper.append_op("edit_distance", inputs, {"Out": out, "SequenceNum": count}, attrs)
    return out, count
