"""Generate names that are unique within a program, in Fluid's form: a key and a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["UniqueNameGenerator", "generate", "guard", "switch"]


class UniqueNameGenerator:
    """Generates unique names from a prefix, a key and a counter for each key."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._made: Counter[str] = Counter()

    def generate(self, key: str) -> str:
        """Return the key followed by its next number."""
        number = self._made[key]
        self._made[key] += 1
        return f"{self.prefix}{key}_{number}"

    __call__ = generate


_names = UniqueNameGenerator()


def generate(key: str) -> str:
    """Return a name based on `key` that has not been generated under the current guard.

    >>> with guard():
    ...     generate("fc"), generate("fc"), generate("fc_0.w")
    ('fc_0', 'fc_1', 'fc_0.w_0')
    """
    return _names.generate(key)


def switch(
    new_generator: UniqueNameGenerator | tuple[UniqueNameGenerator, None] | None = None,
    new_para_name_checker: Any = None,
) -> tuple[UniqueNameGenerator, None]:
    """Restart the counters, or continue with the counters from an earlier call.

    Returns the previous counters.

    The second item in each pair is for Fluid's name check in imperative mode, which is not
    performed here.
    """
    global _names
    del new_para_name_checker
    if isinstance(new_generator, tuple):  # the complete result of an earlier call
        new_generator = new_generator[0]
    old, _names = _names, new_generator or UniqueNameGenerator()
    return old, None


@contextmanager
def guard(new_generator: str | bytes | None = None) -> Iterator[None]:
    """Restart the counters within the `with` block; `new_generator` is a prefix of each name."""
    prefix = new_generator.decode() if isinstance(new_generator, bytes) else new_generator
    old, _ = switch(UniqueNameGenerator(prefix or ""))
    try:
        yield
    finally:
        switch(old)
