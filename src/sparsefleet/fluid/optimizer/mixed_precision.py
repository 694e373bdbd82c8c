"""Train in half precision with float32 parameters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from sparsefleet.fluid.framework import (
    Block,
    Operator,
    Parameter,
    Program,
    Variable,
    program_guard,
    unique_name,
)
from sparsefleet.fluid.framework import default_main_program as _default_main
from sparsefleet.fluid.framework import default_startup_program as _default_startup
from sparsefleet.fluid.lowering.shapes import operator_def
from sparsefleet.fluid.operators.layer_helper import LayerHelper
from sparsefleet.fluid.optimizer.clip import derived_gradient
from sparsefleet.fluid.optimizer.optimizer import Optimizer, Pairs
from sparsefleet.fluid.optimizer.wrappers import OptimizerWrapper

__all__ = ["AutoMixedPrecisionLists", "OptimizerWithMixedPrecision", "decorate", "rewrite_program"]


white_list = set({"conv2d", "matmul", "mul"})

black_list = set(
    {
        "cos_sim",
        "cross_entropy",
        "cross_entropy2",
        "exp",
        "log",
        "mean",
        "sigmoid_cross_entropy_with_logits",
        "softmax",
        "softmax_with_cross_entropy",
        "square",
        "sum",
    }
)

gray_list = set(
    {
        "batch_norm",
        "cast",
        "dropout",
        "elementwise_add",
        "elementwise_div",
        "elementwise_floordiv",
        "elementwise_max",
        "elementwise_min",
        "elementwise_mod",
        "elementwise_mul",
        "elementwise_pow",
        "elementwise_sub",
        "fill_constant",
        "flatten2",
        "gather",
        "gaussian_random",
        "gaussian_random_batch_size_like",
        "get_tensor_from_selected_rows",
        "leaky_relu",
        "lookup_table",
        "pool2d",
        "pool3d",
        "rank",
        "relu",
        "relu6",
        "reshape2",
        "scale",
        "sigmoid",
        "sign",
        "slice",
        "soft_relu",
        "stack",
        "tanh",
        "top_k",
        "transpose2",
        "uniform_random_batch_size_like",
        "unstack",
    }
)


class AutoMixedPrecisionLists:
    """Lists of operators in half precision (white), float32 (black), or their inputs' type (gray).

    An operator that is not listed is black. The default lists are Fluid 1.8.5's; custom lists take
    precedence.

    custom_black_varnames: operators that read or write these variables are black.

    >>> sorted(AutoMixedPrecisionLists(custom_black_list={"mul"}).white_list)
    ['conv2d', 'matmul']
    """

    def __init__(
        self,
        custom_white_list: Collection[str] | None = None,
        custom_black_list: Collection[str] | None = None,
        custom_black_varnames: Collection[str] | None = None,
    ) -> None:
        white, black = set(custom_white_list or ()), set(custom_black_list or ())
        if white & black:
            raise ValueError(
                "custom lists must not overlap, but both contain "
                f"{', '.join(sorted(white & black))}"
            )
        self.white_list = (white_list - black) | white
        self.black_list = (black_list - white) | black
        self.gray_list = gray_list - white - black
        self.black_varnames = set(custom_black_varnames or ())


Kind = Literal["white", "black"]

_DTYPE: dict[Kind, str] = {"white": "float16", "black": "float32"}

_SUFFIX = {"float16": "fp16", "float32": "fp32"}


def rewrite_program(main_prog: Program, amp_lists: AutoMixedPrecisionLists) -> None:
    """Insert a `cast` wherever a value passes between float32 and half-precision operators.

    Outputs of white operators are declared float16, which becomes bfloat16 on the CPU. Parameters
    stay float32, and operators read copies. Only the outermost block is rewritten; variables that
    inner blocks read or write stay float32, as do table rows.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     out = fluid.layers.fc(fluid.data("x", [None, 2]), 1, bias_attr=False)
    ...     rewrite_program(fluid.default_main_program(), AutoMixedPrecisionLists())
    ...     [op.type for op in fluid.default_main_program().global_block().ops], out.dtype
    (['cast', 'cast', 'mul'], 'float16')
    """
    block = main_prog.global_block()
    kinds = _kinds(block, amp_lists)
    casts = _Casts(block)
    rewritten: list[Operator] = []
    for op, kind in zip(block.ops, kinds, strict=True):
        if kind is not None:
            rewritten += casts.before(op, kind)
            if kind == "white":
                _declare_half(block, op)
        rewritten.append(op)
        casts.forget(op.output_arg_names)
    block.hold_ops(rewritten)


def _kinds(block: Block, lists: AutoMixedPrecisionLists) -> list[Kind | None]:
    """Return each operator's kind: white or black.

    A gray operator takes its inputs' kind, which is None if they have none.
    """
    black_names = lists.black_varnames | _names_of_bodies(block) | _names_made_twice(block)
    kind_of: dict[str, Kind | None] = {}  # the latest operator that wrote a variable
    found: list[Kind | None] = []
    for op in block.ops:
        kind: Kind | None
        if op.type in lists.black_list or not _can_be_white(block, op, black_names):
            kind = "black"
        elif op.type in lists.white_list:
            kind = "white"
        elif op.type in lists.gray_list:
            before = {kind_of.get(name) for name in op.input_arg_names}
            kind = "black" if "black" in before else "white" if "white" in before else None
        else:
            kind = "black"
        found.append(kind)
        kind_of.update(dict.fromkeys(op.output_arg_names, kind))
    return found


def _can_be_white(block: Block, op: Operator, black_names: set[str]) -> bool:
    names = [*op.input_arg_names, *op.output_arg_names]
    reads_rows = any(
        isinstance(variable, Parameter) and variable.is_table
        for variable in map(block.vars.get, names)
    )
    draws = "dtype" in operator_def(op).settings and bool(op.input_arg_names)
    return not (reads_rows or draws or op.has_sub_block or black_names.intersection(names))


def _names_of_bodies(block: Block) -> set[str]:
    bodies = [op for op in block.ops if op.has_sub_block]
    return {name for op in bodies for name in (*op.input_arg_names, *op.output_arg_names)}


def _names_made_twice(block: Block) -> set[str]:
    """Return the variables that are written more than once, whose writers must use the same
    type.
    """
    found: set[str] = set()
    made: set[str] = set()
    for op in block.ops:
        names = {name for name in op.output_arg_names if not block.vars[name].persistable}
        found |= names & (made | set(op.input_arg_names))
        made |= names
    return found


class _Casts:
    """Copies of variables in the other precision, each created once."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._made: set[str] = set()

    def before(self, op: Operator, kind: Kind) -> list[Operator]:
        """Return the casts that `op` needs, and make `op` use their results."""
        added = []
        for slot, names in op.inputs.items():
            if kind == "white" and op.type == "batch_norm" and slot != "X":
                continue  # statistics and their parameters are always float32
            for place, name in enumerate(names):
                copied = self._copy_of(name, _DTYPE[kind])
                if copied is None:
                    continue
                names[place] = copied.name
                if copied.name not in self._made:
                    self._made.add(copied.name)
                    added.append(_cast(self._block.vars[name], copied, op))
        return added

    def forget(self, names: list[str]) -> None:
        """Drop the copies of variables that are about to get new values."""
        for name in names:
            self._made.discard(f"{name}.cast_fp16")
            self._made.discard(f"{name}.cast_fp32")

    def _copy_of(self, name: str, dtype: str) -> Variable | None:
        source = self._block.vars[name]
        if source.dtype not in _SUFFIX or source.dtype == dtype:
            return None
        copied = f"{name}.cast_{_SUFFIX[dtype]}"
        return self._block.vars.get(copied) or self._block.create_var(
            copied, source.shape, dtype, source.lod_level, type=source.type
        )


def _cast(source: Variable, copied: Variable, reader: Operator) -> Operator:
    attrs = {"in_dtype": source.dtype, "out_dtype": copied.dtype, "by_place": True}
    slots = ({"X": [source.name]}, {"Out": [copied.name]})
    return Operator("cast", *slots, attrs, role=reader.role, site=reader.site)


def _declare_half(block: Block, op: Operator) -> None:
    for slot, names in op.outputs.items():
        if op.type == "batch_norm" and slot != "Y":
            continue
        for variable in map(block.vars.__getitem__, names):
            if variable.dtype == "float32":
                variable.dtype = "float16"
                if op.type == "cast":
                    op.attrs |= {"out_dtype": "float16", "by_place": True}


class OptimizerWithMixedPrecision(OptimizerWrapper):
    """An optimizer returned by `decorate`.

    The scope holds the loss scale and the number of consecutive finite or non-finite steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        amp_lists: AutoMixedPrecisionLists,
        init_loss_scaling: float,
        use_dynamic_loss_scaling: bool,
        settings: dict[str, Any],
    ) -> None:
        super().__init__(optimizer)
        self._amp_lists = amp_lists
        self._first_scale = float(init_loss_scaling)
        self._is_dynamic = use_dynamic_loss_scaling
        self._settings = settings
        self._scale: Variable | None = None
        self._scaled_loss: Variable | None = None

    def get_loss_scaling(self) -> Variable:
        """Return the variable that holds the loss scale: float32[1]."""
        if self._scale is None:
            self._scale = _state("loss_scaling", "float32", self._first_scale)
        return self._scale

    def get_scaled_loss(self) -> Variable | None:
        """Return the scaled loss, available after `backward`."""
        return self._scaled_loss

    def backward(
        self,
        loss: Variable,
        startup_program: Program | None = None,
        parameter_list: Sequence[Variable | str] | None = None,
        no_grad_set: Collection[Variable | str] | None = None,
        callbacks: Any = None,
    ) -> Pairs:
        """Rewrite the program and add the backward pass; return parameters and unscaled
        gradients.
        """
        assert loss.block is not None
        program = loss.block.program
        with program_guard(program, startup_program or _default_startup()):
            rewrite_program(program, self._amp_lists)
            scale = self.get_loss_scaling()
            self._scaled_loss = loss * scale
            pairs = self._optimizer.backward(
                self._scaled_loss, startup_program, parameter_list, no_grad_set, callbacks
            )
            with program.role_guard("backward"):
                inverse = LayerHelper("loss_scaling").add("reciprocal", {"X": scale})
                return [
                    (p, derived_gradient("scale_gradient", {"X": g, "Factor": inverse}))
                    for p, g in pairs
                ]

    def apply_gradients(self, params_grads: Pairs) -> list[Operator]:
        """Add the updates; with a dynamic scale, they run only if all gradients are finite."""
        if self._is_dynamic:
            with _default_main().role_guard("backward"):
                params_grads = self._kept_if_finite(params_grads)
        return self._optimizer.apply_gradients(params_grads)

    def _kept_if_finite(self, pairs: Pairs) -> Pairs:
        helper = LayerHelper("update_loss_scaling")
        gradients = [gradient for _, gradient in pairs]
        finite = helper.add("gradients_are_finite", {"X": gradients}, dtype="bool")
        states = {
            "LossScaling": self.get_loss_scaling(),
            "GoodSteps": _state("num_good_steps", "int32"),
            "BadSteps": _state("num_bad_steps", "int32"),
        }
        helper.append_op(
            "update_loss_scaling", {"Finite": finite, **states}, states, self._settings
        )
        return [
            (parameter, derived_gradient("keep_if", {"X": gradient, "Condition": finite}))
            for parameter, gradient in pairs
        ]


def _state(name: str, dtype: str, value: float = 0.0) -> Variable:
    name = unique_name.generate(name)
    return LayerHelper(name).create_state(name, [1], dtype, value)


def decorate(
    optimizer: Optimizer,
    amp_lists: AutoMixedPrecisionLists | None = None,
    init_loss_scaling: float = 2**15,
    incr_every_n_steps: int = 1000,
    decr_every_n_nan_or_inf: int = 2,
    incr_ratio: float = 2.0,
    decr_ratio: float = 0.8,
    use_dynamic_loss_scaling: bool = True,
) -> OptimizerWithMixedPrecision:
    """Return an optimizer whose `minimize` runs white operators in half precision.

    This is bfloat16 on a CPU and float16 on a GPU; parameters and optimizer state are float32. The
    loss, and therefore every gradient, is scaled in the backward pass.

    use_dynamic_loss_scaling: use a scale that grows by incr_ratio after more than
        incr_every_n_steps consecutive finite steps, and shrinks by decr_ratio after more than
        decr_every_n_nan_or_inf steps with a non-finite gradient. A step with a non-finite gradient
        has no other effect.

    >>> from sparsefleet import fluid
    >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
    ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), 1))
    ...     optimizer = decorate(fluid.optimizer.SGD(0.1), init_loss_scaling=8.0)
    ...     _, pairs = optimizer.minimize(loss)
    >>> [parameter.dtype for parameter, _ in pairs]
    ['float32', 'float32']
    """
    settings = {
        "incr_every_n_steps": incr_every_n_steps,
        "decr_every_n_nan_or_inf": decr_every_n_nan_or_inf,
        "incr_ratio": float(incr_ratio),
        "decr_ratio": float(decr_ratio),
    }
    lists = AutoMixedPrecisionLists() if amp_lists is None else amp_lists
    return OptimizerWithMixedPrecision(
        optimizer, lists, init_loss_scaling, use_dynamic_loss_scaling, settings
    )
