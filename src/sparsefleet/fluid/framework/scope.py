"""Scopes, which hold named values between runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sparsefleet.fluid.framework.lod_tensor import LoDTensor, LoDTensorArray
from sparsefleet.fluid.framework.sparse_parameter import SparseParameter

__all__ = [
    "Scope",
    "ScopeVariable",
    "bring_to_device",
    "enter_local_scope",
    "find_var",
    "get_cur_scope",
    "global_scope",
    "leave_local_scope",
    "scope_guard",
    "scoped_function",
    "var",
]


class RankTable:
    """Sequences sorted by length, longest first."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows

    def items(self) -> list[tuple[int, int]]:
        """Return the index and length of each sequence."""
        return [(int(index), int(length)) for index, length in self._rows]


class ScopeVariable:
    """A named variable in a scope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._value: LoDTensor | LoDTensorArray | SparseParameter = LoDTensor()
        self._number: int | None = None

    def get_tensor(self) -> Any:
        """Return the variable's tensor, which can be `set`, or read with `np.array`."""
        return self._value

    def get_lod_tensor_array(self) -> LoDTensorArray:
        """Return the variable's array of tensors, creating it if needed."""
        if not isinstance(self._value, LoDTensorArray):
            self._value = LoDTensorArray()
        return self._value

    def is_int(self) -> bool:
        """Return whether the variable holds a number that was set with `set_int`."""
        return self._number is not None

    def set_int(self, value: int) -> None:
        """Store a number instead of a tensor."""
        self._number = int(value)

    def get_int(self) -> int:
        """Return the number. Raises ValueError if the variable holds a tensor."""
        if self._number is None:
            raise ValueError(f"variable '{self.name}' has no value; call set_int first")
        return self._number

    def get_lod_rank_table(self) -> RankTable:
        """Return the result of `layers.lod_rank_table`."""
        return RankTable(self.get_tensor().numpy())

    def hold(self, value: Any) -> None:
        """Store a result of a run, reusing the existing memory if it fits."""
        if isinstance(value, SparseParameter):
            self._value = value
            return
        if isinstance(value, list):
            self._value = LoDTensorArray(
                LoDTensor(one.detach().clone(), [level.cpu().numpy() for level in lod])
                for one, lod in value
            )
            return
        held = self._value
        if isinstance(held, LoDTensor) and held._is_initialized():
            old = held.tensor
            if old.shape == value.shape and old.dtype == value.dtype:
                old.data.copy_(value.detach())
                return
        if not isinstance(held, LoDTensor):
            self._value = held = LoDTensor()
        held.share(value.detach().clone())

    def share(self, value: LoDTensor | SparseParameter) -> None:
        """Use this object as the value, without a copy."""
        self._value = value

    def value(self) -> torch.Tensor | SparseParameter | list[Any] | None:
        """Return the value that a run uses, or None if unset. The items of an array have LoDs."""
        held = self._value
        if isinstance(held, SparseParameter):
            return held
        if isinstance(held, LoDTensorArray):
            return [(one.tensor, tuple(map(torch.from_numpy, one.offsets()))) for one in held]
        return held.tensor if held._is_initialized() else None


class Scope:
    """Holds variables by name; missing variables are looked up in the parent scope.

    >>> scope = Scope()
    >>> scope.var("w").get_tensor().set([1.0, 2.0])
    >>> scope.new_scope().find_var("w").get_tensor().shape()
    [2]
    """

    def __init__(self, parent: Scope | None = None) -> None:
        self._parent = parent
        self._variables: dict[str, ScopeVariable] = {}
        self._kids: list[Scope] = []
        self.prepared: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        """Programs whose persistent variables are in this scope, with each program's version."""

    def var(self, name: str) -> ScopeVariable:
        """Return the variable in this scope, creating it if needed."""
        return self._variables.setdefault(name, ScopeVariable(name))

    def find_var(self, name: str) -> ScopeVariable | None:
        """Return the variable in this scope or in a parent, or None if there is none."""
        found = self._variables.get(name)
        if found is None and self._parent is not None:
            return self._parent.find_var(name)
        return found

    def new_scope(self) -> Scope:
        """Create a child scope."""
        kid = Scope(self)
        self._kids.append(kid)
        return kid

    def drop_kids(self) -> None:
        """Drop the child scopes."""
        self._kids.clear()

    def erase(self, names: list[str]) -> None:
        """Remove variables."""
        self.prepared.clear()
        for name in names:
            self._variables.pop(name, None)

    def local_var_names(self) -> list[str]:
        return list(self._variables)


def bring_to_device(scope: Scope, names: Iterable[str], device: torch.device) -> None:
    """Move tensors with these names to the device and keep them there. Tables are not moved."""
    for name in names:
        found = scope.find_var(name)
        held = None if found is None else found.get_tensor()
        if isinstance(held, LoDTensor) and held._is_initialized() and held.tensor.device != device:
            held.share(held.tensor.to(device))


class _Current:
    def __init__(self) -> None:
        self.scope = Scope()


_current = _Current()


def global_scope() -> Scope:
    """Return the scope that runs use by default."""
    return _current.scope


@contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make `global_scope()` return this scope in the `with` block."""
    if not isinstance(scope, Scope):
        raise TypeError(f"scope_guard takes a fluid.Scope, got {scope!r}")
    old, _current.scope = _current.scope, scope
    try:
        yield
    finally:
        _current.scope = old


class _Stack(threading.local):
    def __init__(self) -> None:
        self.scopes = [Scope()]


_stack = _Stack()


def get_cur_scope() -> Scope:
    """Return this thread's innermost scope."""
    return _stack.scopes[-1]


def enter_local_scope() -> None:
    """Enter a child of the innermost scope."""
    _stack.scopes.append(get_cur_scope().new_scope())


def leave_local_scope() -> None:
    """Leave and drop the innermost scope, unless it is the thread's first scope."""
    if len(_stack.scopes) > 1:
        _stack.scopes.pop()
    get_cur_scope().drop_kids()


def var(name: str) -> ScopeVariable:
    """Return a variable in the innermost scope, creating it if needed."""
    return get_cur_scope().var(name)


def find_var(name: str) -> ScopeVariable | None:
    """Return a variable in the innermost scope or an enclosing scope."""
    return get_cur_scope().find_var(name)


def scoped_function(func: Callable[[], object]) -> None:
    """Call a function in its own scope.

    >>> scoped_function(lambda: var("x"))
    >>> find_var("x") is None
    True
    """
    enter_local_scope()
    try:
        func()
    finally:
        leave_local_scope()
