"""A stack of scopes per thread, under the names in Fluid's `default_scope_funcs`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sparsefleet.fluid.framework.scope import Scope, ScopeVariable

__all__ = [
    "enter_local_scope",
    "find_var",
    "get_cur_scope",
    "leave_local_scope",
    "scoped_function",
    "var",
]


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
