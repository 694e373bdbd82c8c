"""From frames to symbols: CTC, and the distance of texts. Letters: B texts, T frames, C classes."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from sparsefleet.fluid.lowering.lowered import Lod
from sparsefleet.fluid.lowering.registry import op
from sparsefleet.fluid.ops.labelling import Rows

Tensor = torch.Tensor


@op(
    "warpctc",
    "Logits Label LogitsLength? LabelLength?",
    "Loss",
    lod="function",
    infer=lambda *_, **__: [(-1, 1)],
)
def warpctc(
    logits: Tensor,
    label: Tensor,
    frames: Tensor | None,
    symbols: Tensor | None,
    *,
    lods: list[Any],
    blank: int = 0,
    norm_by_times: bool = False,
) -> tuple[Tensor, Lod]:
    """Minus the logarithm of the probability of each text: [B, 1].

    logits: [N, C] with a LoD, or [T, B, C]; label: [M, 1] with a LoD, or [B, L].
    norm_by_times: gradients are divided by the number of frames.
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
def edit_distance(
    found: Tensor,
    wanted: Tensor,
    found_length: Tensor | None,
    wanted_length: Tensor | None,
    *,
    lods: list[Any],
    normalized: bool = True,
    ignored_tokens: list[int],
) -> tuple[tuple[Tensor, Tensor], Lod]:
    """Insertions, deletions and changes from each text to the wanted one: [B, 1], and B: [1].

    normalized: divided by the length of the wanted text.
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
            raise ValueError(f"text {number} is empty: its distance cannot be normalized")
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
    """Levenshtein's."""
    before = list(range(len(other) + 1))
    for row, symbol in enumerate(one, 1):
        present = [row]
        for column, wanted in enumerate(other, 1):
            changed = before[column - 1] + (symbol != wanted)
            present.append(min(changed, before[column] + 1, present[-1] + 1))
        before = present
    return float(before[-1])
