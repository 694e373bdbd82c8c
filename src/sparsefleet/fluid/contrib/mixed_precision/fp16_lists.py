"""Which operators Fluid would run in float16."""

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


class AutoMixedPrecisionLists:
    """Operators for float16 (white) and for float32 (black); the custom ones go before.

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
        self.black_varnames = set(custom_black_varnames or ())
