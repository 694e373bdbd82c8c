"""Fluid's module of loops, branches and arrays."""

from sparsefleet.fluid.layers.arrays import (
    array_length,
    array_read,
    array_to_lod_tensor,
    array_write,
    create_array,
    lod_rank_table,
    lod_tensor_to_array,
    max_sequence_len,
    reorder_lod_tensor_by_rank,
    shrink_memory,
)
from sparsefleet.fluid.layers.branches import Switch, case, cond, switch_case
from sparsefleet.fluid.layers.comparisons import (
    equal,
    greater_equal,
    greater_than,
    less_equal,
    less_than,
    not_equal,
)
from sparsefleet.fluid.layers.dynamic_rnn import DynamicRNN
from sparsefleet.fluid.layers.elementwise import increment
from sparsefleet.fluid.layers.if_else import IfElse, merge_lod_tensor, split_lod_tensor
from sparsefleet.fluid.layers.inspection import Print, is_empty
from sparsefleet.fluid.layers.loops import While, while_loop
from sparsefleet.fluid.layers.parallel_do import ParallelDo
from sparsefleet.fluid.layers.static_rnn import StaticRNN
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.layers.control_flow")

__all__ = [
    "DynamicRNN",
    "IfElse",
    "ParallelDo",
    "Print",
    "StaticRNN",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_to_lod_tensor",
    "array_write",
    "case",
    "cond",
    "create_array",
    "equal",
    "greater_equal",
    "greater_than",
    "increment",
    "is_empty",
    "less_equal",
    "less_than",
    "lod_rank_table",
    "lod_tensor_to_array",
    "max_sequence_len",
    "merge_lod_tensor",
    "not_equal",
    "reorder_lod_tensor_by_rank",
    "shrink_memory",
    "split_lod_tensor",
    "switch_case",
    "while_loop",
]
