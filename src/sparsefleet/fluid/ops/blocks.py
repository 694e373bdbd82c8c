"""Operators whose work is a block: loops and branches. What they hold: `lowering.body`."""

from __future__ import annotations

from typing import Any

import torch

from sparsefleet.fluid.lowering.body import Frame, Held, RunBody
from sparsefleet.fluid.lowering.registry import op

Tensor = torch.Tensor


def _unchanged(*shapes: Any, **settings: Any) -> list[tuple[int, ...]]:
    del shapes, settings
    return []


@op("while", "X* Condition", "Out*", lod="none", infer=_unchanged)
def run_while(frame: Frame, body: RunBody, *, condition: str, results: list[str]) -> list[Held]:
    """Runs the body as long as the condition, which the body changes, holds."""
    while _truth(frame, condition):
        frame |= body(frame)
    return [frame.get(name, (None, ())) for name in results]


@op("conditional_block", "X* Condition*", "Out*", lod="none", infer=_unchanged)
def conditional_block(
    frame: Frame, body: RunBody, *, condition: str, results: list[str]
) -> list[Held]:
    """Runs the body once, if the condition holds; else its results stay as they were."""
    if _truth(frame, condition):
        frame |= body(frame)
    return [frame.get(name, (None, ())) for name in results]


def _truth(frame: Frame, name: str) -> bool:
    value = frame[name][0]
    if value is None or value.numel() != 1:
        found = "no value" if value is None else f"shape {list(value.shape)}"
        raise ValueError(f"its condition '{name}' must have one element, got {found}")
    return bool(value)


@op("recurrent", "X* Sequences* Initial*", "Out*", lod="none", infer=_unchanged)
def recurrent(
    frame: Frame,
    body: RunBody,
    *,
    sequences: list[str],
    steps: list[str],
    initial: list[str],
    before: list[str],
    after: list[str],
    step_outputs: list[str],
) -> list[Held]:
    """Runs the body for each element of the sequences along their first axis.

    steps: what the body calls the elements. initial, before, after: what a memory begins with,
    and what the body calls it before and after the step. Results: step outputs, stacked.
    """
    lengths = {len(frame[name][0]) for name in sequences}
    if len(lengths) != 1:
        raise ValueError(f"sequences of different lengths: {sorted(lengths)}")
    memories = [frame[name] for name in initial]
    found: list[list[Tensor]] = [[] for _ in step_outputs]
    for time in range(lengths.pop()):
        inner = dict(zip(before, memories, strict=True))
        inner |= {
            step: (frame[name][0][time], ()) for step, name in zip(steps, sequences, strict=True)
        }
        made = body(frame | inner)
        memories = [made[name] for name in after]
        for values, name in zip(found, step_outputs, strict=True):
            values.append(made[name][0])
    if not all(found):
        raise ValueError("sequences without elements")
    return [(torch.stack(values), ()) for values in found]


@op("select_input", "X* Mask", lod="function", infer=lambda shapes, _: shapes[:1])
def select_input(values: list[Any], mask: Tensor, *, lods: list[Any]) -> Held:
    """The value with the number in mask."""
    place = int(mask)
    return values[place], lods[0][place]
