"""Which operators compute in half precision."""

from __future__ import annotations

from collections.abc import Collection

__all__ = ["AutoMixedPrecisionLists"]

_WHITE = frozenset({"conv2d", "matmul", "mul"})
_BLACK = frozenset(
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
_GRAY = frozenset(
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
    """Operators in half precision (white), in float32 (black), and those that follow their inputs.

    Those are gray; an operator in no list is black. The sets are those of Fluid 1.8.5, and the
    custom ones go before.

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
            raise ValueError(f"in both custom lists: {', '.join(sorted(white & black))}")
        self.white_list = (_WHITE - black) | white
        self.black_list = (_BLACK - white) | black
        self.gray_list = _GRAY - white - black
        self.black_varnames = set(custom_black_varnames or ())
