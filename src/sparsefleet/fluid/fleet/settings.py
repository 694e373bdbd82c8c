"""Objects with a fixed set of settable fields, like Fluid's configs.

Setting an unknown field raises an error that suggests the nearest field name.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable, Mapping

from sparsefleet.errors import ConfigError

__all__ = ["Settings", "UnknownFieldError", "unknown_field"]


class UnknownFieldError(ConfigError, AttributeError):
    """Raised for an unknown field; the message suggests the nearest field name."""


def unknown_field(owner: str, name: str, known: Iterable[str]) -> UnknownFieldError:
    """Return the error for a field that `owner` does not have.

    >>> str(unknown_field("BuildStrategy", "asnyc_mode", ["async_mode", "memory_optimize"]))
    "BuildStrategy has no field 'asnyc_mode'; did you mean 'async_mode'?"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"its fields are {', '.join(names)}"
    return UnknownFieldError(f"{owner} has no field {name!r}; {hint}")


class Settings:
    """Base class for configs whose fields are class annotations or properties with a setter."""

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        """Return the settable fields, in order of definition."""
        names: dict[str, None] = {}
        for kind in reversed(cls.__mro__):
            for name in inspect.get_annotations(kind):
                names[name] = None
            for name, value in kind.__dict__.items():
                if isinstance(value, property) and value.fset is not None:
                    names[name] = None
        return tuple(name for name in names if not name.startswith("_"))

    def as_dict(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.field_names()}

    def update(self, fields: Mapping[str, object]) -> None:
        """Set fields by name. If one value is rejected, no field is set."""
        for name in fields:
            if name not in self.field_names():
                raise unknown_field(type(self).__name__, name, self.field_names())
        before = dict(vars(self))
        try:
            for name, value in fields.items():
                setattr(self, name, value)
        except (TypeError, ValueError):
            vars(self).clear()
            vars(self).update(before)
            raise

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and name not in self.field_names():
            raise unknown_field(type(self).__name__, name, self.field_names())
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.as_dict().items())
        return f"{type(self).__name__}({fields})"
