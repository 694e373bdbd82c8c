"""A simulated GPU: tensors that report its device, over CPU memory.

Values are real, so that results can be compared. As on a real GPU, mixing CPU and GPU tensors is an
error, and so is reading GPU memory with NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from sparsefleet.fluid.lowering import graph_parts
from sparsefleet.fluid.lowering.lowered import making_on

GPU = torch.device("cuda:0")
_COPIES = ("aten._to_copy.default", "aten.copy_.default")


class GpuTensor(torch.Tensor):
    """Only Python sees it on a GPU: below, torch creates its scalars on the CPU."""

    inner: torch.Tensor
    device = GPU
    is_cuda = True
    is_cpu = False

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> GpuTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            inner.stride(),
            inner.storage_offset(),
            dtype=inner.dtype,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if str(func) not in _COPIES:
            for value in tree_leaves((args, kwargs)):
                if isinstance(value, torch.Tensor) and not isinstance(value, cls) and value.dim():
                    raise RuntimeError(
                        f"{func}: expected all tensors to be on {GPU}, found one of "
                        f"{tuple(value.shape)} on cpu"
                    )
        plain = tree_map_only(cls, lambda x: x.inner, (args, kwargs))
        out = func(*plain[0], **plain[1])
        if func is torch.ops.aten.copy_.default and not isinstance(args[0], cls):
            return args[0]
        wrapped = tree_map_only(torch.Tensor, cls, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


class _Generator(torch.Generator):
    def __new__(cls, device: Any = "cpu") -> _Generator:
        del device
        return super().__new__(cls)


class _Gpu(TorchFunctionMode):
    """Redirects what is created on, or moved to and from, the GPU to `GpuTensor`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if func is torch.Tensor.cpu:
            return args[0].inner.detach() if isinstance(args[0], GpuTensor) else args[0]
        if func is torch.Tensor.tolist and isinstance(args[0], GpuTensor):
            return args[0].inner.tolist()
        if name == "to":
            return _moved(func, args, kwargs)
        if func is torch.Tensor.numpy and isinstance(args[0], GpuTensor):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        wanted = kwargs.get("device")
        if wanted is None and func in _device._device_constructors():
            wanted = _device.CURRENT_DEVICE
        if wanted is not None and torch.device(wanted).type == "cuda":
            kwargs["device"] = "cpu"
            is_trained = kwargs.pop("requires_grad", False)
            made = func(*tree_map_only(GpuTensor, lambda x: x.inner, args), **kwargs)
            return GpuTensor(made).requires_grad_(is_trained)
        return func(*args, **kwargs)


class _Copy(torch.autograd.Function):
    """Copies to the other device; gradients are copied back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        del ctx
        return x.inner.clone() if isinstance(x, GpuTensor) else GpuTensor(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        del ctx
        return _Copy.apply(gradient)


def _moved(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensor, *rest = args
    given = [*rest, *kwargs.values()]
    device = next((x for x in given if isinstance(x, (str, torch.device))), None)
    if device is None:
        return func(*args, **kwargs)
    dtype = next((x for x in given if isinstance(x, torch.dtype)), tensor.dtype)
    if (torch.device(device).type == "cuda") != isinstance(tensor, GpuTensor):
        tensor = _Copy.apply(tensor)
    return func(tensor, dtype) if dtype != tensor.dtype else tensor


@contextmanager
def _making_on(device: torch.device | None) -> Iterator[None]:
    """`making_on` of another thread, which does not know of the simulation."""
    with _Gpu(), making_on(device):
        yield


_draws = graph_parts._drawing_from


@contextmanager
def _drawing_from(*given: Any) -> Iterator[None]:
    """`_drawing_from` for segments that autograd recomputes, where the simulation is off."""
    with _Gpu(), _draws(*given):
        yield


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Let torch see one GPU inside the block. Its random numbers are the CPU's."""
    with (
        mock.patch.object(torch.cuda, "is_available", return_value=True),
        mock.patch.object(torch.cuda, "device_count", return_value=1),
        mock.patch.object(torch.cuda, "set_device"),
        mock.patch.object(torch.__future__, "_swap_module_params_on_conversion", True),
        mock.patch.object(torch, "Generator", _Generator),
        mock.patch.object(graph_parts, "_drawing_from", _drawing_from),
        mock.patch("sparsefleet.fluid.executor.data_parallel.making_on", _making_on),
        _Gpu(),
    ):
        yield
