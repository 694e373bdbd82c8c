"""Names that occur once in a program, as Fluid makes them: a key and a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["generate", "guard", "switch"]


class _Names:
    """Counts the names made of each key, under a prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._made: Counter[str] = Counter()

    def generate(self, key: str) -> str:
        number = self._made[key]
        self._made[key] += 1
        return f"{self.prefix}{key}_{number}"


_names = _Names()


def generate(key: str) -> str:
    """A name with `key` that was not given out under the present guard.

    >>> with guard():
    ...     generate("fc"), generate("fc"), generate("fc_0.w")
    ('fc_0', 'fc_1', 'fc_0.w_0')
    """
    return _names.generate(key)


def switch(new_generator: _Names | None = None) -> _Names:
    """Counts anew, or goes on with counts that an earlier call returned; returns the old ones."""
    global _names
    old, _names = _names, new_generator or _Names()
    return old


@contextmanager
def guard(new_generator: str | bytes | None = None) -> Iterator[None]:
    """Counts anew within, each name with the prefix `new_generator`; the old counts come back."""
    prefix = new_generator.decode() if isinstance(new_generator, bytes) else new_generator
    old = switch(_Names(prefix or ""))
    try:
        yield
    finally:
        switch(old)
