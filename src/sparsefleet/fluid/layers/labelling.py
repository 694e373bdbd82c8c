"""Labels along sequences: conditional random fields, and how good chunks are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparsefleet.fluid.framework import Variable
from sparsefleet.fluid.layer_helper import LayerHelper, layer
from sparsefleet.fluid.ops.labelling import SCHEMES
from sparsefleet.fluid.param_attr import to_param_attr

__all__ = ["chunk_eval", "crf_decoding", "linear_chain_crf"]


@layer
def linear_chain_crf(
    input: Variable, label: Variable, param_attr: Any = None, length: Variable | None = None
) -> Variable:
    """What the labels of each sequence cost, by a conditional random field: [B, 1].

    input: [N, D] with a LoD, or [B, T, D] with length int64[B, 1]; label: int64 [N, 1] or [B, T].
    Its parameter [D + 2, D]: scores of the first and of the last label, and from label to label.
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
    """The likeliest labels int64 [N, 1] or [B, T]; beside `label`, 1 where it is that one.

    param_attr: the name of the parameter of `linear_chain_crf`.
    """
    helper = LayerHelper("crf_decoding")
    known = to_param_attr(param_attr)
    if known is None or known.name is None:
        raise helper.refuse("param_attr must name the parameter of linear_chain_crf")
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
    """Precision, recall and F1 of chunks, and how many were found, are there, are right: [1] each.

    chunk_scheme: IOB, IOE, IOBES or plain. A label is type * tags of the scheme + tag; the number
    after the last one is outside of all chunks.
    """
    helper = LayerHelper("chunk_eval")
    if chunk_scheme not in SCHEMES:
        raise helper.refuse(f"chunk_scheme is one of {', '.join(SCHEMES)}, got {chunk_scheme!r}")
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
