"""Steps of decoders. Letters: B batch, K beams, V words, T steps."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor
Shape = tuple[int, ...]

_NEVER = -1e9  # Fluid's logarithm of the probability of what cannot be


@op("step_mask", "X Length", lod="none", infer=lambda x, *_, **__: [x[:2]])
def step_mask(x: Tensor, length: Tensor, *, dtype: str = "float32") -> Tensor:
    """1 where a step of x [T, B, ...] lies within its example: [T, B]."""
    steps = torch.arange(len(x))[:, None]
    return (steps < length.reshape(1, -1)).to(getattr(torch, dtype))


def _without(shape: Shape, *others: Any, axis: int) -> list[Shape]:
    del others
    return [shape[:axis] + shape[axis + 1 :]]


@op("step_of", "X I", lod="none", infer=_without)
def step_of(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    """Element I along an axis; zeros beyond the last one."""
    place = int(index)
    if place < x.shape[axis]:
        return x.select(axis, place)
    return torch.zeros_like(x.select(axis, 0))


@op("expand_to_beams", "X", lod="none", infer=lambda x, *, beam_size: [(x[0], beam_size, *x[1:])])
def expand_to_beams(x: Tensor, *, beam_size: int) -> Tensor:
    """The same for all beams: [B, K, ...]."""
    return x.unsqueeze(1).expand(len(x), beam_size, *x.shape[1:])


@op("merge_beams", "X", lod="none", infer=lambda x: [(-1, *x[2:])])
def merge_beams(x: Tensor) -> Tensor:
    """[B, K, ...] as [B * K, ...]."""
    return x.flatten(0, 1)


@op("split_beams", "X", lod="none", infer=lambda x, *, beam_size: [(-1, beam_size, *x[1:])])
def split_beams(x: Tensor, *, beam_size: int) -> Tensor:
    """[B * K, ...] as [B, K, ...]."""
    return x.reshape(-1, beam_size, *x.shape[1:])


@op("gather_beams", "X Index", lod="none", infer=lambda x, *_: [x])
def gather_beams(x: Tensor, index: Tensor) -> Tensor:
    """x [B, K, ...] with its beams as index [B, K] names them."""
    return x[torch.arange(len(x))[:, None], index]


def _begin_shapes(x: Shape, *, beam_size: int, **settings: Any) -> list[Shape]:
    del settings
    return [(x[0], beam_size)] * 4


@op("begin_beams", "X", "Ids LogProbs Finished Lengths", lod="none", infer=_begin_shapes)
def begin_beams(x: Tensor, *, beam_size: int, start_token: int) -> tuple[Tensor, ...]:
    """Beams as long as nothing is decoded, for the examples of x: [B, K] each.

    Only the first beam can be chosen, for they are all the same.
    """
    shape = (len(x), beam_size)
    chances = torch.full(shape, _NEVER)
    chances[:, 0] = 0.0
    finished = torch.zeros(shape, dtype=torch.bool)
    return torch.full(shape, start_token), chances, finished, torch.zeros(shape, dtype=torch.int64)


def _step_shapes(logits: Shape, before: Shape, *others: Any, **settings: Any) -> list[Shape]:
    del logits, others, settings
    return [before] * 5


@op(
    "beam_step",
    "Logits LogProbs Finished Lengths",
    "Scores Ids Parents NextFinished NextLengths",
    lod="none",
    infer=_step_shapes,
)
def beam_step(
    logits: Tensor, before: Tensor, finished: Tensor, lengths: Tensor, *, end_token: int
) -> tuple[Tensor, ...]:
    """The K best ways to go on: logits [B, K, V], others [B, K].

    A beam that is finished goes on with the end token at no cost.
    """
    words = logits.shape[-1]
    only_end = torch.full((words,), _NEVER)
    only_end[end_token] = 0.0
    chances = torch.where(finished[..., None], only_end, logits.log_softmax(-1))
    scores, places = (chances + before[..., None]).flatten(1).topk(before.shape[1])
    parents, ids = places // words, places % words
    ended = finished.gather(1, parents)
    counts = lengths.gather(1, parents) + (~ended).long()
    return scores, ids, parents, ended | (ids == end_token), counts


@op("where_finished", "Finished X Y", lod="none", infer=lambda finished, x, *_: [x])  # noqa: ARG005
def where_finished(finished: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """x where it is finished, else y; `finished` has their first axes."""
    mask = finished.reshape(*finished.shape, *[1] * (x.dim() - finished.dim()))
    return torch.where(mask, x, y)
