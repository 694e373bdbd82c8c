"""The operators that a graph may call. Torch itself would call anything it finds by name.

Operators that compute on tensors are allowed. Operators that open files, take raw storage, talk to
other processes or do not check their arguments are not allowed. For a few operators of the last
kind that models need, `check_operators` makes the graph check the arguments first; otherwise an
untrusted graph, or numbers sent by a client, could make their kernels read or write out of bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from sparsefleet.errors import ConfigError, ShapeError

__all__ = ["allow_operators", "check_operators", "is_arithmetic", "is_higher_order", "why_refused"]

_OVERLOAD = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)", re.ASCII)
_OPERATOR_NAME = re.compile(r"\w+::\w+", re.ASCII)

# Functions on numbers and sizes.
_ARITHMETIC = {
    *("_operator." + name for name in ("eq", "ne", "le", "ge", "lt", "gt", "neg", "pos", "abs")),
    *("_operator." + name for name in ("mul", "add", "sub", "floordiv", "truediv", "mod", "pow")),
    *("_operator." + name for name in ("and_", "or_", "not_", "lshift", "rshift")),
    *("math." + name for name in ("trunc", "ceil", "floor")),
    *("torch.sym_" + name for name in ("not", "int", "float", "ite", "max", "min", "sqrt", "sum")),
}

# Control flow operators. Their functions are graphs, which are checked like the enclosing graph.
_HIGHER_ORDER = {
    "torch.ops.higher_order." + name
    for name in (
        *("cond", "map", "map_impl", "scan", "while_loop", "associative_scan"),
        *("wrap_with_set_grad_enabled", "wrap_with_autocast"),
    )
}

# Public torch operators that are refused anyway: files, storage, gradients, and kernels that treat
# their arguments as packed weights or valid indices without checking.
_REFUSED = re.compile(
    r"from_file|set_?|set_data|requires_grad_|retain_grad|grad|(.*_)?backward(_.*)?"
    r"|(fbgemm|cudnn|miopen|mps|mkldnn|quantized)_.*|(.*_)?sparse(_.*)?|hspmm|sspaddmm"
    r"|segment_reduce|ctc_loss|native_batch_norm|choose_qparams_.*|fake_quantize_.*|fused_moving_.*"
    r"|quantize_per_.*"
)
# Operators whose names start with an underscore are not a stable API; models compile to these.
_PRIVATE = re.compile(
    r"__i?(and|or|xor|lshift|rshift)__|_assert_(async|scalar|tensor_metadata)"
    r"|_functional_(assert_async|assert_scalar|sym_constrain_range(_for_size)?)"
    r"|_(log_)?softmax|_safe_softmax|_masked_softmax|_to_copy|_local_scalar_dense"
    r"|_unsafe_view|_reshape_copy|_shape_as_tensor|_stack|_trilinear|_euclidean_dist"
    r"|_(c|p)dist_forward|_convolution(_mode)?|_adaptive_avg_pool[23]d|_aminmax|_prelu_kernel"
    r"|_batch_norm_impl_index|_fused_rms_norm|_scaled_dot_product_attention_math"
    r"|_thnn_fused_(gru|lstm)_cell|_pack_padded_sequence|_pad_(circular|enum)"
    r"|_weight_norm(_interface)?|_unique2?|_is_(all|any)_true|_fft_(c2c|c2r|r2c)|_conj(_physical)?"
    r"|_neg_view|_upsample_\w+|_linalg_(det|eigh|eigvals|slogdet|solve_ex|svd)|_logcumsumexp"
    r"|_cast_[A-Z][a-z]+|_add_relu_?|_addmm_activation|_dim_arange|_standard_gamma"
)
# Functions of sizes alone, without a tensor.
_OF_SIZES = re.compile(
    r"_(functional_)?assert_scalar|(_functional_)?sym_constrain_range(_for_size)?"
)
_PLAIN_TYPES = re.compile(
    r"(Optional\[|List\[)*(Tensor|number|int|float|bool|complex|str|Device|Generator)\]*"
)

_also_allowed: set[str] = set()


def allow_operators(*names: str) -> None:
    """Allow graphs that this process exports or loads to call operators of other libraries.

    names: as registered with torch.library, "library::operator". An operator runs with whatever
    arguments the graph passes, so if graphs come from others, do not allow operators that open
    files or run commands. Import the library before loading a graph.

    >>> allow_operators("torchvision::nms")
    """
    for name in names:
        if not _OPERATOR_NAME.fullmatch(name):
            raise ConfigError(f"got the operator {name!r}, expected 'library::operator'")
    _also_allowed.update(names)


def is_arithmetic(target: str) -> bool:
    """Return whether `target` names a Python function that computes with numbers."""
    return target in _ARITHMETIC


def is_higher_order(target: str) -> bool:
    """Return whether `target` names an operator that takes graphs as arguments."""
    return target in _HIGHER_ORDER


def why_refused(target: str) -> str | None:
    """Return the reason why a graph may not call `target`, or None if the call is allowed."""
    if target in _ARITHMETIC or target in _HIGHER_ORDER:
        return None
    found = _OVERLOAD.fullmatch(target)
    if found is None:
        return "it is not an operator that a graph may call"
    library, name, overload = found.groups()
    schema = _schema(library, name, overload)
    if schema is None:
        return f"torch {torch.__version__} has no such operator; import its library first"
    if f"{library}::{name}" in _also_allowed or (library, name) == ("sparsefleet", "look_up"):
        return None
    if library == "aten":
        return None if _is_plain(name, schema) else "it does more than compute on tensors"
    return (
        "it belongs to another library; if it is safe to call with any arguments, allow it with "
        f"sparsefleet.serving.export.allow_operators('{library}::{name}')"
    )


def _schema(library: str, name: str, overload: str) -> Any:
    """Return the schema of a registered operator, or None if there is no such operator."""
    try:
        overload = "" if overload == "default" else overload
        return torch._C._get_schema(f"{library}::{name}", overload)
    except RuntimeError:
        return None


def _is_plain(name: str, schema: Any) -> bool:
    """Return whether a torch operator only computes tensors from tensors and numbers."""
    if _REFUSED.fullmatch(name) or (name.startswith("_") and not _PRIVATE.fullmatch(name)):
        return False
    types = [str(part.type) for part in (*schema.arguments, *schema.returns)]
    on_tensors = _OF_SIZES.fullmatch(name) or any("Tensor" in kind for kind in types)
    return bool(on_tensors) and all(_PLAIN_TYPES.fullmatch(kind) for kind in types)


def check_operators(module: fx.GraphModule) -> None:
    """Make calls to these operators in a graph, including nested graphs, check their arguments."""
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
