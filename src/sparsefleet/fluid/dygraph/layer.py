"""Layers as objects that hold their parameters, and containers of layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from sparsefleet.fluid.dygraph.eager import VarBase
from sparsefleet.fluid.framework import Parameter, unique_name
from sparsefleet.fluid.framework.param_attr import to_param_attr
from sparsefleet.fluid.operators.layer_helper import LayerHelper

__all__ = ["Layer", "LayerList", "ParameterList", "Sequential"]

Hook = Callable[..., Any]


class Layer:
    """A part of a network, with parameters, sublayers and `forward`.

    name_scope: prefix of the layer's parameter names; by default, the class name.
    """

    def __init__(self, name_scope: str | None = None, dtype: Any = "float32") -> None:
        self.training = True
        self._parameters: OrderedDict[str, Any] = OrderedDict()
        self._sub_layers: OrderedDict[str, Layer] = OrderedDict()
        self._buffers: OrderedDict[str, Any] = OrderedDict()
        self._full_name = unique_name.generate(name_scope or type(self).__name__.lower())
        self._helper = LayerHelper(self._full_name, self._full_name)
        self._dtype = dtype
        self._before: dict[int, Hook] = {}
        self._after: dict[int, Hook] = {}

    # -- parameters and layers ----------------------------------------------------------------

    def full_name(self) -> str:
        return self._full_name

    def create_parameter(
        self,
        shape: Sequence[int],
        attr: Any = None,
        dtype: Any = None,
        is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Any:
        """Create a parameter to assign to an attribute, or return None if `attr` is False."""
        known = to_param_attr(attr)
        if known is None:
            return None
        return self._helper.create_parameter(
            known, shape, dtype or self._dtype, is_bias, default_initializer
        )

    def create_variable(
        self, name: str | None = None, persistable: bool | None = None, dtype: Any = None
    ) -> Any:
        """Create a variable without a value."""
        return self._helper.create_variable(
            name, dtype=dtype or self._dtype, persistable=bool(persistable)
        )

    def add_parameter(self, name: str, parameter: Any) -> Any:
        """Register a parameter under a name, and return it."""
        if parameter is not None and not isinstance(parameter, Parameter):
            raise TypeError(f"add_parameter takes a parameter, got {parameter!r}")
        self._parameters[name] = parameter
        return parameter

    def add_sublayer(self, name: str, sublayer: Layer) -> Layer:
        """Register a layer under a name, and return it."""
        if not isinstance(sublayer, Layer):
            raise TypeError(f"add_sublayer takes a Layer, got {sublayer!r}")
        self._sub_layers[name] = sublayer
        return sublayer

    def register_buffer(self, name: str, value: Any) -> Any:
        """Register a variable that is saved but not trained."""
        self._buffers[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        registers: Any = None
        if isinstance(value, Parameter):
            registers = self.__dict__.get("_parameters")
        elif isinstance(value, Layer):
            registers = self.__dict__.get("_sub_layers")
        if registers is None and isinstance(value, (Parameter, Layer)):
            raise ValueError("call super().__init__() before assigning layers and parameters")
        if registers is not None:
            self.__dict__.pop(name, None)
            registers[name] = value
        elif name in self.__dict__.get("_parameters", {}):
            self._parameters[name] = value
        else:
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        for registers in ("_parameters", "_sub_layers", "_buffers"):
            found = self.__dict__.get(registers, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for registers in (self._parameters, self._sub_layers, self._buffers):
            if name in registers:
                del registers[name]
                return
        super().__delattr__(name)

    def named_sublayers(
        self, prefix: str = "", include_sublayers: bool = True, include_self: bool = False
    ) -> Iterator[tuple[str, Layer]]:
        """Yield all sublayers with their paths."""
        if include_self:
            yield prefix, self
        for name, layer in self._sub_layers.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, layer
            if include_sublayers:
                yield from layer.named_sublayers(path)

    def sublayers(self, include_sublayers: bool = True) -> list[Layer]:
        return [layer for _, layer in self.named_sublayers(include_sublayers=include_sublayers)]

    def named_parameters(
        self, prefix: str = "", include_sublayers: bool = True
    ) -> Iterator[tuple[str, Any]]:
        """Yield each parameter once, with its path."""
        seen: set[int] = set()
        for path, value in self._named("_parameters", prefix, include_sublayers):
            if value is not None and id(value) not in seen:
                seen.add(id(value))
                yield path, value

    def parameters(self, include_sublayers: bool = True) -> list[Any]:
        return [value for _, value in self.named_parameters("", include_sublayers)]

    def buffers(self, include_sublayers: bool = True) -> list[Any]:
        return [value for _, value in self._named("_buffers", "", include_sublayers)]

    def _named(self, registers: str, prefix: str, deep: bool) -> Iterator[tuple[str, Any]]:
        layers = self.named_sublayers(prefix, deep, include_self=True)
        for path, layer in layers if deep else [(prefix, self)]:
            for name, value in getattr(layer, registers).items():
                yield (f"{path}.{name}" if path else name), value

    # -- calling --------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Compute the output; must be defined by subclasses."""
        raise NotImplementedError(f"{type(self).__name__} has no forward(); define it")

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        for hook in list(self._before.values()):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        for hook in list(self._after.values()):
            changed = hook(self, inputs, outputs)
            outputs = outputs if changed is None else changed
        return outputs

    def register_forward_pre_hook(self, hook: Hook) -> HookHandle:
        """Call hook(layer, inputs) before `forward`; its result, if any, replaces the inputs."""
        return HookHandle(self._before, hook)

    def register_forward_post_hook(self, hook: Hook) -> HookHandle:
        """Call hook(layer, inputs, outputs) after `forward`."""
        return HookHandle(self._after, hook)

    def train(self) -> None:
        """Switch to training mode (with dropout, for example), including sublayers."""
        for _, layer in self.named_sublayers(include_self=True):
            layer.training = True

    def eval(self) -> None:
        """Switch to evaluation mode (without dropout, for example), including sublayers."""
        for _, layer in self.named_sublayers(include_self=True):
            layer.training = False

    def clear_gradients(self) -> None:
        """Clear the gradients of all parameters."""
        for parameter in self.parameters():
            parameter.clear_gradient()

    def apply(self, fn: Callable[[Layer], Any]) -> Layer:
        """Call fn for this layer and all sublayers."""
        for _, layer in self.named_sublayers(include_self=True):
            fn(layer)
        return self

    # -- saving ---------------------------------------------------------------------------------

    def state_dict(
        self, destination: dict[str, Any] | None = None, include_sublayers: bool = True
    ) -> dict[str, Any]:
        """Return a dict from path to parameter or buffer."""
        found = OrderedDict() if destination is None else destination
        for registers in ("_parameters", "_buffers"):
            for path, value in self._named(registers, "", include_sublayers):
                if value is not None:
                    found[path] = value
        return found

    def set_dict(
        self,
        stat_dict: Mapping[str, Any],
        include_sublayers: bool = True,
        use_structured_name: bool = True,
    ) -> None:
        """Load values from a dict whose keys are paths or parameter names."""
        for path, value in self.state_dict(include_sublayers=include_sublayers).items():
            key = path if use_structured_name else value.name
            if key not in stat_dict:
                raise ValueError(f"parameter '{key}' is not in the loaded state")
            value.set_value(stat_dict[key])

    load_dict = set_dict


class HookHandle:
    """Removes a hook when `remove` is called."""

    def __init__(self, hooks: dict[int, Hook], hook: Hook) -> None:
        self._hooks, self._number = hooks, max(hooks, default=0) + 1
        hooks[self._number] = hook

    def remove(self) -> None:
        self._hooks.pop(self._number, None)


class Sequential(Layer):
    """Runs layers one after another. Each is given as a layer or as a pair (name, layer)."""

    def __init__(self, *layers: Any) -> None:
        super().__init__()
        if len(layers) == 1 and isinstance(layers[0], (list, tuple)):
            is_pair = len(layers[0]) == 2 and isinstance(layers[0][0], str)
            layers = layers if is_pair else tuple(layers[0])
        for number, layer in enumerate(layers):
            named = layer if isinstance(layer, (list, tuple)) else (str(number), layer)
            self.add_sublayer(*named)

    def __getitem__(self, name: int | str) -> Layer:
        if isinstance(name, int):
            return list(self._sub_layers.values())[name]
        return self._sub_layers[name]

    def __setitem__(self, name: int | str, layer: Layer) -> None:
        self.add_sublayer(str(name), layer)

    def __delitem__(self, name: int | str) -> None:
        del self._sub_layers[str(name)]

    def __len__(self) -> int:
        return len(self._sub_layers)

    def forward(self, input: Any) -> Any:
        for layer in self._sub_layers.values():
            input = layer(input)
        return input


class LayerList(Layer):
    """A list of layers."""

    def __init__(self, sublayers: Iterable[Layer] | None = None) -> None:
        super().__init__()
        self.extend(sublayers or ())

    def append(self, sublayer: Layer) -> LayerList:
        self.add_sublayer(str(len(self)), sublayer)
        return self

    def extend(self, sublayers: Iterable[Layer]) -> LayerList:
        for layer in sublayers:
            self.append(layer)
        return self

    def insert(self, index: int, sublayer: Layer) -> None:
        layers = list(self._sub_layers.values())
        layers.insert(index, sublayer)
        self._hold(layers)

    def __getitem__(self, index: Any) -> Any:
        layers = list(self._sub_layers.values())
        return LayerList(layers[index]) if isinstance(index, slice) else layers[index]

    def __setitem__(self, index: int, sublayer: Layer) -> None:
        self.add_sublayer(str(index % len(self)), sublayer)

    def __delitem__(self, index: Any) -> None:
        layers = list(self._sub_layers.values())
        del layers[index]
        self._hold(layers)

    def _hold(self, layers: Sequence[Layer]) -> None:
        self._sub_layers.clear()
        self.extend(layers)

    def __len__(self) -> int:
        return len(self._sub_layers)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self._sub_layers.values())


class ParameterList(Layer):
    """A list of parameters."""

    def __init__(self, parameters: Iterable[Any] | None = None) -> None:
        super().__init__()
        for parameter in parameters or ():
            self.append(parameter)

    def append(self, parameter: Any) -> ParameterList:
        self.add_parameter(str(len(self)), parameter)
        return self

    def __getitem__(self, index: int) -> Any:
        return self._parameters[str(index)]

    def __setitem__(self, index: int, parameter: Any) -> None:
        self._parameters[str(index)] = parameter

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parameters.values())


def value_variable(name: str, tensor: torch.Tensor) -> VarBase:
    """Create a persistent, non-trainable variable with this value."""
    made = VarBase(name, tuple(tensor.shape), str(tensor.dtype), persistable=True)
    made.hold(tensor)
    made.stop_gradient = True
    return made
