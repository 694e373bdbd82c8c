"""Fuse pairs of operators if no other operator uses the intermediate result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence

from sparsefleet.fluid.framework import Operator, Program
from sparsefleet.fluid.operators.fused import FUSED_ACTIVATIONS

__all__ = ["fused_operators"]

_POOLS = ("SUM", "AVERAGE", "SQRT")


def fused_operators(
    program: Program, ops: Sequence[Operator], fetches: Collection[str]
) -> list[Operator]:
    """Return the operators, with pairs fused.

    lookup_table and sequence_pool by sum become `lookup_bag`; mul and elementwise_add of a bias
    become `mul_add`; an operator in `program.fused_with_activation` and its activation become
    `fused_...`.
    """
    found = _Pairs(program, ops, fetches)
    result: list[Operator] = []
    gone: list[Operator] = []  # second of a pair, so it cannot be the first of another pair
    for op in ops:
        first = found.first_of(op)
        if first is None or first in gone:
            result.append(op)
        else:
            result = [other for other in result if other is not first]
            result.append(_fusion(first, op)(first, op))
            gone.append(op)
    return result


class _Pairs:
    """Finds pairs of operators to fuse; tracks the operators that write and read each variable."""

    def __init__(self, program: Program, ops: Sequence[Operator], fetches: Collection[str]) -> None:
        self._vars = program.global_block().vars
        self._ops = ops
        self._fetches = set(fetches)
        inner = [op for block in program.blocks[1:] for op in block.ops]
        self._reads = Counter(name for op in (*ops, *inner) for name in op.input_arg_names)
        self._writes = Counter(name for op in (*ops, *inner) for name in op.output_arg_names)
        self._maker = {op.output_arg_names[0]: op for op in ops if op.type in _FIRSTS}
        # Compiled functions free the values that a second backward pass would need.
        is_alone = sum(op.type == "backward" for op in ops) <= 1
        self._activated = program.fused_with_activation if is_alone else frozenset()

    def first_of(self, op: Operator) -> Operator | None:
        """Return the operator to fuse with `op`: the one whose result only `op` uses.

        Returns None if there is no such operator.
        """
        between = next(iter(op.input("X")), "")
        first = self._maker.get(between)
        if first is None or not self._fits(first, op) or not self._is_hidden(between):
            return None
        later = self._ops[self._ops.index(first) + 1 : self._ops.index(op)]
        changed = {name for other in later for name in other.output_arg_names}
        return None if changed.intersection(first.input_arg_names) else first

    def _fits(self, first: Operator, op: Operator) -> bool:
        if first.type in _ACTIVATED:
            return first.type in self._activated and op.type in FUSED_ACTIVATIONS
        if (first.type, op.type) not in _FUSIONS:
            return False
        return self._is_bag(first, op) if op.type == "sequence_pool" else self._is_bias(first, op)

    def _is_hidden(self, name: str) -> bool:
        variable = self._vars[name]
        return (
            self._reads[name] == self._writes[name] == 1
            and not variable.persistable
            and not variable.stop_gradient
            and not self._fetches.intersection((name, variable.grad_name))
            and not self._reads[variable.grad_name]
        )

    def _is_bag(self, lookup: Operator, pool: Operator) -> bool:
        del lookup
        return pool.attrs.get("pooltype", "SUM") in _POOLS

    def _is_bias(self, product: Operator, add: Operator) -> bool:
        weight, bias = self._vars[product.input("Y")[0]], self._vars[add.input("Y")[0]]
        columns = product.attrs.get("x_num_col_dims", 1)
        return (
            len(weight.shape) == 2
            and bias.shape == weight.shape[1:]
            and weight.dtype == bias.dtype
            and add.attrs.get("axis", -1) in (-1, columns)
        )


def _bag(lookup: Operator, pool: Operator) -> Operator:
    attrs = {
        "padding_idx": lookup.attrs.get("padding_idx", -1),
        "pooltype": pool.attrs.get("pooltype", "SUM"),
        "pad_value": pool.attrs.get("pad_value", 0.0),
        "flat": lookup.type == "lookup_table",
    }
    return Operator("lookup_bag", lookup.inputs, pool.outputs, attrs, site=pool.site)


def _product(product: Operator, add: Operator) -> Operator:
    inputs = {**product.inputs, "Bias": add.input("Y")}
    return Operator("mul_add", inputs, add.outputs, product.attrs, site=product.site)


def _activation(first: Operator, act: Operator) -> Operator:
    setting, default, *_ = FUSED_ACTIVATIONS[act.type]
    number = default if setting is None else act.attrs.get(setting, default)
    attrs = {**first.attrs, "act": act.type, "number": number}
    outputs = {**first.outputs, next(iter(first.outputs)): act.output("Out")}
    return Operator(_ACTIVATED[first.type], first.inputs, outputs, attrs, site=first.site)


def _fusion(first: Operator, op: Operator) -> Callable[[Operator, Operator], Operator]:
    return _activation if first.type in _ACTIVATED else _FUSIONS[first.type, op.type]


_FUSIONS = {
    ("lookup_table", "sequence_pool"): _bag,
    ("lookup_table_v2", "sequence_pool"): _bag,
    ("mul", "elementwise_add"): _product,
}
_ACTIVATED = {
    "batch_norm": "fused_batch_norm_act",
    "elementwise_add": "fused_elemwise_activation",
}
_FIRSTS = {first for first, _ in _FUSIONS} | _ACTIVATED.keys()
