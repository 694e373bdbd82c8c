"""Layers from `fluid.layers`, as objects that hold their parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from sparsefleet.fluid.dygraph.layer import Layer, value_variable
from sparsefleet.fluid.framework import Parameter, in_dygraph_mode, unique_name
from sparsefleet.fluid.framework.initializer import Constant, Normal
from sparsefleet.fluid.framework.param_attr import ExistingParamAttr, ParamAttr
from sparsefleet.fluid.operators import (
    activations,
    algebra,
    convolutions,
    normalization,
    pools,
    recurrent,
    sampled_losses,
)
from sparsefleet.fluid.operators.embedding import embedding_of_ids
from sparsefleet.fluid.operators.layer_helper import LayerHelper

__all__ = [
    "BatchNorm",
    "BilinearTensorProduct",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Conv3DTranspose",
    "Dropout",
    "Embedding",
    "GRUUnit",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "Linear",
    "NCE",
    "PRelu",
    "Pool2D",
    "SpectralNorm",
]


def _named(parameter: Any) -> Any:
    """Return the ParamAttr that makes a layer use this parameter, or False if the parameter is
    None.
    """
    return False if parameter is None else ExistingParamAttr(parameter)


def _here(helper: LayerHelper, known: Any) -> Any:
    """Return the counterpart of a parameter or buffer in the program that layers add to."""
    if in_dygraph_mode() or known is None:
        return known
    if isinstance(known, Parameter):
        return helper.create_parameter(ParamAttr(name=known.name), known.shape, known.dtype)
    settings = {"persistable": True, "stop_gradient": True}
    return helper.create_variable(known.name, known.shape, known.dtype, **settings)


def _own(layer: Any) -> dict[str, Any]:
    """Return the attrs that make a function use the layer's own weight and bias."""
    return {"param_attr": _named(layer.weight), "bias_attr": _named(layer.bias)}


def _picked(arguments: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Return the arguments, given as `locals()`, that have one of these names."""
    return {name: arguments[name] for name in names.split()}


def _sizes(value: int | Sequence[int], count: int) -> list[int]:
    return [value] * count if isinstance(value, int) else list(value)


class Linear(Layer):
    """Computes act(x W + b) along the last axis."""

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("linear", dtype)
        self._act = act
        self.weight = self.create_parameter([input_dim, output_dim], param_attr)
        self.bias = self.create_parameter([output_dim], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        helper = LayerHelper(self._full_name, self._full_name)
        axis = len(input.shape) - 1
        made = helper.add("matmul", {"X": input, "Y": _here(helper, self.weight)})
        if self.bias is not None:
            inputs = {"X": made, "Y": _here(helper, self.bias)}
            made = helper.add("elementwise_add", inputs, {"axis": axis})
        return helper.activate(made, self._act)


class _Convolution(Layer):
    axes = 2
    is_transposed = False

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: Any = 0,
        dilation: int | Sequence[int] = 1,
        groups: int | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        use_cudnn: bool = True,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(None, dtype)
        del use_cudnn
        window = _sizes(filter_size, self.axes)
        count = groups or 1
        if num_channels % count:
            raise ValueError(f"num_channels {num_channels} is not divisible by {count} groups")
        self._settings = _picked(locals(), "num_filters stride padding dilation groups act")
        self._settings["filter_size"] = window
        if self.is_transposed:
            shape, first = [num_channels, num_filters // count, *window], None
        else:
            shape = [num_filters, num_channels // count, *window]
            deviation = math.sqrt(2.0 / (math.prod(window) * num_channels))
            first = Normal(0.0, deviation, 0)
        self.weight = self.create_parameter(shape, param_attr, default_initializer=first)
        self.bias = self.create_parameter([num_filters], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        kind = f"conv{self.axes}d{'_transpose' if self.is_transposed else ''}"
        return getattr(convolutions, kind)(input, **self._settings, **_own(self))


class Conv2D(_Convolution):
    """Convolves images [N, C, H, W]."""


class Conv3D(_Convolution):
    """Convolves volumes [N, C, D, H, W]."""

    axes = 3


class Conv3DTranspose(_Convolution):
    """Applies a transposed convolution to volumes."""

    axes = 3
    is_transposed = True

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: int | Sequence[int],
        padding: Any = 0,
        stride: int | Sequence[int] = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_channels, num_filters, filter_size, stride, padding, *args, **kwargs)


class Conv2DTranspose(_Convolution):
    """Applies a transposed convolution to images."""

    is_transposed = True

    def __init__(
        self,
        num_channels: int,
        num_filters: int,
        filter_size: int | Sequence[int],
        output_size: Any = None,
        padding: Any = 0,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        stride, *others = args or (kwargs.pop("stride", 1),)
        super().__init__(num_channels, num_filters, filter_size, stride, padding, *others, **kwargs)
        self._settings["output_size"] = output_size


class Pool2D(Layer):
    """Pools images: takes the maximum or mean of each window."""

    def __init__(
        self,
        pool_size: Any = -1,
        pool_type: str = "max",
        pool_stride: Any = 1,
        pool_padding: Any = 0,
        global_pooling: bool = False,
        use_cudnn: bool = True,
        ceil_mode: bool = False,
        exclusive: bool = True,
    ) -> None:
        super().__init__()
        del use_cudnn
        if pool_type not in ("max", "avg"):
            raise ValueError(f"pool_type must be 'max' or 'avg', got {pool_type!r}")
        if not global_pooling and pool_size == -1:
            raise ValueError("pool_size must be given unless global_pooling is True")
        self._settings = _picked(
            locals(),
            "pool_size pool_type pool_stride pool_padding global_pooling ceil_mode exclusive",
        )

    def forward(self, input: Any) -> Any:
        return pools.pool2d(input, **self._settings)


class BatchNorm(Layer):
    """Normalizes each channel over the batch or, in test mode, with the running statistics."""

    def __init__(
        self,
        num_channels: int,
        act: str | None = None,
        is_test: bool = False,
        momentum: float = 0.9,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
        data_layout: str = "NCHW",
        in_place: bool = False,
        moving_mean_name: str | None = None,
        moving_variance_name: str | None = None,
        do_model_average_for_mean_and_var: bool = True,
        use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        super().__init__("batch_norm", dtype)
        del is_test, in_place, do_model_average_for_mean_and_var
        shape = [num_channels]
        first = Constant(1.0)
        self.weight = self.create_parameter(shape, param_attr, default_initializer=first)
        self.bias = self.create_parameter(shape, bias_attr, is_bias=True)
        kind = getattr(torch, str(dtype))
        mean = moving_mean_name or unique_name.generate(f"{self._full_name}.w")
        variance = moving_variance_name or unique_name.generate(f"{self._full_name}.w")
        self._mean = self.register_buffer(
            "_mean", value_variable(mean, torch.zeros(shape, dtype=kind))
        )
        self._variance = self.register_buffer(
            "_variance", value_variable(variance, torch.ones(shape, dtype=kind))
        )
        self._act = act
        self._trains_statistics = trainable_statistics
        self._attrs = _picked(locals(), "momentum epsilon data_layout use_global_stats")

    def forward(self, input: Any) -> Any:
        helper = LayerHelper(self._full_name, self._full_name)
        out = helper.new_variable(self._dtype)
        inputs = {
            "X": input,
            "Scale": _here(helper, self.weight),
            "Bias": _here(helper, self.bias),
            "Mean": _here(helper, self._mean),
            "Variance": _here(helper, self._variance),
        }
        outputs = {"Y": out, "MeanOut": inputs["Mean"], "VarianceOut": inputs["Variance"]}
        is_test = not self.training and not self._trains_statistics
        helper.append_op("batch_norm", inputs, outputs, {**self._attrs, "is_test": is_test})
        return helper.activate(out, self._act)


class Dropout(Layer):
    """Sets elements to 0 at random while training."""

    def __init__(
        self,
        p: float = 0.5,
        seed: int | None = None,
        dropout_implementation: str = "downgrade_in_infer",
        is_test: bool = False,
    ) -> None:
        super().__init__()
        self._settings: dict[str, Any] = {
            "dropout_prob": p,
            "seed": seed,
            "dropout_implementation": dropout_implementation,
        }
        self._is_test = is_test

    def forward(self, input: Any) -> Any:
        is_test = self._is_test or not self.training
        return activations.dropout(input, is_test=is_test, **self._settings)


class Embedding(Layer):
    """Looks up rows of a table by id."""

    def __init__(
        self,
        size: Sequence[int],
        is_sparse: bool = False,
        is_distributed: bool = False,
        padding_idx: int | None = None,
        param_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("embedding", dtype)
        del is_sparse, is_distributed
        self._size, self._padding_idx = list(size), padding_idx
        self.weight = self.create_parameter(self._size, param_attr)

    def forward(self, input: Any) -> Any:
        return embedding_of_ids(
            input,
            self._size,
            padding_idx=self._padding_idx,
            param_attr=_named(self.weight),
            dtype=self._dtype,
        )


class LayerNorm(Layer):
    """Normalizes the last axes to mean 0 and variance 1."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        scale: bool = True,
        shift: bool = True,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("layer_norm", dtype)
        self._shape = _sizes(normalized_shape, 1)
        self._settings: dict[str, Any] = {"epsilon": epsilon, "act": act}
        size = [math.prod(self._shape)]
        first = Constant(1.0)
        self.weight = (
            self.create_parameter(size, param_attr, default_initializer=first) if scale else None
        )
        self.bias = self.create_parameter(size, bias_attr, is_bias=True) if shift else None

    def forward(self, input: Any) -> Any:
        if list(input.shape[-len(self._shape) :]) != self._shape:
            raise ValueError(
                f"LayerNorm over {self._shape} got an input of shape {list(input.shape)}"
            )
        return normalization.layer_norm(
            input,
            scale=self.weight is not None,
            shift=self.bias is not None,
            begin_norm_axis=len(input.shape) - len(self._shape),
            param_attr=_named(self.weight) or None,
            bias_attr=_named(self.bias) or None,
            **self._settings,
        )


class GroupNorm(Layer):
    """Normalizes groups of channels to mean 0 and variance 1."""

    def __init__(
        self,
        channels: int,
        groups: int,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        act: str | None = None,
        data_layout: str = "NCHW",
        dtype: Any = "float32",
    ) -> None:
        super().__init__("group_norm", dtype)
        if data_layout != "NCHW":
            raise ValueError(f"GroupNorm supports only data_layout 'NCHW', got {data_layout!r}")
        self._settings: dict[str, Any] = {"groups": groups, "epsilon": epsilon, "act": act}
        first = Constant(1.0)
        self.weight = self.create_parameter([channels], param_attr, default_initializer=first)
        self.bias = self.create_parameter([channels], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        return normalization.group_norm(input, **self._settings, **_own(self))


class InstanceNorm(Layer):
    """Normalizes each channel of each image to mean 0 and variance 1."""

    def __init__(
        self,
        num_channels: int,
        epsilon: float = 1e-05,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("instance_norm", dtype)
        self._epsilon = epsilon
        first = Constant(1.0)
        self.scale = self.create_parameter([num_channels], param_attr, default_initializer=first)
        self.bias = self.create_parameter([num_channels], bias_attr, is_bias=True)

    def forward(self, input: Any) -> Any:
        attrs = {"param_attr": _named(self.scale), "bias_attr": _named(self.bias)}
        return normalization.instance_norm(input, epsilon=self._epsilon, **attrs)


class SpectralNorm(Layer):
    """Divides a weight by its largest singular value."""

    def __init__(
        self,
        weight_shape: Sequence[int],
        dim: int = 0,
        power_iters: int = 1,
        eps: float = 1e-12,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("spectral_norm", dtype)
        self._attrs = {"dim": dim, "power_iters": power_iters, "eps": eps}
        rows = weight_shape[dim]
        columns = math.prod(weight_shape) // rows
        for name, size in (("weight_u", rows), ("weight_v", columns)):
            made = self.create_parameter([size], None, default_initializer=Normal(0.0, 1.0, 0))
            made.trainable = False
            setattr(self, name, made)

    def forward(self, weight: Any) -> Any:
        helper = LayerHelper(self._full_name, self._full_name)
        inputs = {
            "Weight": weight,
            "U": _here(helper, self.weight_u),
            "V": _here(helper, self.weight_v),
        }
        return helper.add("spectral_norm", inputs, self._attrs)


class PRelu(Layer):
    """Multiplies negative values by a learned slope."""

    def __init__(
        self,
        mode: str,
        channel: int | None = None,
        input_shape: Sequence[int] | None = None,
        param_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("prelu", dtype)
        if mode not in ("all", "channel", "element"):
            raise ValueError(f"mode must be 'all', 'channel' or 'element', got {mode!r}")
        shapes = {
            "all": [1],
            "channel": [1, channel or 1, 1, 1],
            "element": [1, *list(input_shape or [1])[1:]],
        }
        self._mode = mode
        first = Constant(1.0)
        self.weight = self.create_parameter(shapes[mode], param_attr, default_initializer=first)

    def forward(self, input: Any) -> Any:
        helper = LayerHelper(self._full_name, self._full_name)
        inputs = {"X": input, "Alpha": _here(helper, self.weight)}
        return helper.add("prelu", inputs, {"mode": self._mode})


class BilinearTensorProduct(Layer):
    """Computes act(x W_i y + b_i) for each i."""

    def __init__(
        self,
        input1_dim: int,
        input2_dim: int,
        output_dim: int,
        name: str | None = None,
        act: str | None = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        dtype: Any = "float32",
    ) -> None:
        super().__init__(name or "bilinear_tensor_product", dtype)
        self._size, self._act = output_dim, act
        self.weight = self.create_parameter([output_dim, input1_dim, input2_dim], param_attr)
        self.bias = self.create_parameter([1, output_dim], bias_attr, is_bias=True)

    def forward(self, x: Any, y: Any) -> Any:
        return algebra.bilinear_tensor_product(x, y, self._size, self._act, **_own(self))


class GRUUnit(Layer):
    """Computes one step of a GRU; returns (hidden, reset hidden, gates)."""

    def __init__(
        self,
        size: int,
        param_attr: Any = None,
        bias_attr: Any = None,
        activation: str = "tanh",
        gate_activation: str = "sigmoid",
        origin_mode: bool = False,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("gru_unit", dtype)
        self._size = size
        self._settings = _picked(locals(), "activation gate_activation origin_mode")
        width = size // 3
        self.weight = self.create_parameter([width, 3 * width], param_attr)
        self.bias = self.create_parameter([1, 3 * width], bias_attr, is_bias=True)

    def forward(self, input: Any, hidden: Any) -> Any:
        return recurrent.gru_unit(input, hidden, self._size, **_own(self), **self._settings)


class NCE(Layer):
    """Computes the noise-contrastive loss of the true classes against sampled classes."""

    def __init__(
        self,
        num_total_classes: int,
        dim: int,
        sample_weight: Any = None,
        param_attr: Any = None,
        bias_attr: Any = None,
        num_neg_samples: int | None = None,
        sampler: str = "uniform",
        custom_dist: Sequence[float] | None = None,
        seed: int = 0,
        is_sparse: bool = False,
        dtype: Any = "float32",
    ) -> None:
        super().__init__("nce", dtype)
        del is_sparse
        self._classes = num_total_classes
        self._settings = _picked(locals(), "sample_weight num_neg_samples sampler custom_dist seed")
        self.weight = self.create_parameter([num_total_classes, dim], param_attr)
        self.bias = self.create_parameter([num_total_classes, 1], bias_attr, is_bias=True)

    def forward(self, input: Any, label: Any, sample_weight: Any = None) -> Any:
        given = {} if sample_weight is None else {"sample_weight": sample_weight}
        settings = {**self._settings, **given, **_own(self)}
        return sampled_losses.nce(input, label, self._classes, **settings)
