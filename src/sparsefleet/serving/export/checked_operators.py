"""Operators whose torch kernels do not check their arguments, so graphs must check them first.

Otherwise an untrusted graph, or numbers sent by a client, could make these kernels read or write
out of bounds. Unchecked kernels that no exported model needs are rejected instead; see
`graph_operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from sparsefleet.errors import ShapeError

__all__ = ["check_operators"]


def check_operators(module: fx.GraphModule) -> None:
    """Make calls of these operators in a graph, including nested graphs, check their arguments."""
    for part in module.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in part.graph.nodes:
            name = getattr(node.target, "_schema", None)
            check = None if name is None else _CHECKS.get(name.name)
            if node.op == "call_function" and check is not None:
                node.target = _checked(node.target, check)
        part.recompile()


def _checked(operator: Any, check: Callable[..., None]) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def call(*arguments: Any, **named: Any) -> Any:
        check(**dict(zip(names, arguments, strict=False)) | named)
        return operator(*arguments, **named)

    call.__name__ = operator._schema.name.partition("::")[2]
    call.__module__ = __name__
    return call


def _check_embedding_bag(
    *, indices: Tensor, offsets: Tensor, include_last_offset: bool = False, **_: Any
) -> None:
    ends = offsets.flatten()
    rises = bool((ends[1:] >= ends[:-1]).all())
    if ends.numel() == 0:
        fits = not include_last_offset
    else:
        fits = int(ends[0]) == 0 and int(ends[-1]) <= indices.numel()
    if not rises or not fits:
        raise ShapeError(
            f"embedding_bag: got offsets {ends.tolist()[:10]}, expected numbers that increase "
            f"from 0 to at most {indices.numel()}, the number of ids"
        )


def _check_weight_norm(*, v: Tensor, g: Tensor, dim: int = 0, **_: Any) -> None:
    axis = dim % v.dim() if v.dim() and dim != -1 else dim
    wanted = [size if at == axis else 1 for at, size in enumerate(v.shape)]
    if (dim == -1 and g.numel() != 1) or (dim != -1 and list(g.shape) != wanted):
        raise ShapeError(
            f"weight_norm: got norms of shape {list(g.shape)} for weights of shape "
            f"{list(v.shape)}, expected {wanted if dim != -1 else '[1]'}"
        )


def _check_attention(
    *, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **more: Any
) -> None:
    num_queries, num_keys = query.shape[-2], key.shape[-2]
    batch = list(query.shape[:-2])
    others = [list(key.shape[:-2]), list(value.shape[:-2])]
    if more.get("enable_gqa"):  # several heads share keys and values
        batch, others = batch[:-1], [other[:-1] for other in others]
    fits = value.shape[-2] == num_keys and key.shape[-1] == query.shape[-1]
    fits = fits and others == [batch, batch]
    if attn_mask is not None:
        whole = [*query.shape[:-2], num_queries, num_keys]
        sizes = zip(reversed(attn_mask.shape), reversed(whole), strict=False)
        fits = fits and attn_mask.dim() <= len(whole)
        fits = fits and all(size in (1, wanted) for size, wanted in sizes)
    if not fits:
        mask = "" if attn_mask is None else f", mask {list(attn_mask.shape)}"
        raise ShapeError(
            f"scaled_dot_product_attention: got queries {list(query.shape)}, keys "
            f"{list(key.shape)}, values {list(value.shape)}{mask}, which do not match"
        )


_CHECKS: dict[str, Callable[..., None]] = {
    "aten::embedding_bag": _check_embedding_bag,
    "aten::_weight_norm": _check_weight_norm,
    "aten::_weight_norm_interface": _check_weight_norm,
    "aten::scaled_dot_product_attention": _check_attention,
}
