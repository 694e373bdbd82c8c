"""Environment variables that are validated when read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sparsefleet.endpoint import parse_endpoint
from sparsefleet.errors import ConfigError

__all__ = ["CheckedEnviron", "Variable", "any_set"]


@dataclass(frozen=True, slots=True)
class Variable:
    """The value of a set environment variable. Methods raise a ConfigError that names the variable.

    >>> Variable("PADDLE_TRAINERS_NUM", "two").integer(low=1)
    Traceback (most recent call last):
    ...
    sparsefleet.errors.ConfigError: PADDLE_TRAINERS_NUM must be an integer >= 1, got 'two'
    """

    name: str
    text: str

    def integer(self, *, low: int, below: tuple[int, str] | None = None) -> int:
        """Return an int >= low and, if `below` is given, < below[0].

        below[1] is the name of that limit in error messages.
        """
        text = self.text.strip()
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and int(text) >= low):
            raise self.refused(f"an integer >= {low}")
        if below is not None and int(text) >= below[0]:
            raise self.refused(f"less than {below[0]} ({below[1]})")
        return int(text)

    def one_of(self, *choices: str) -> str:
        text = self.text.strip()
        if text not in choices:
            raise self.refused(" or ".join(choices))
        return text

    def endpoints(self) -> tuple[str, ...]:
        """Parse "host:port,host:port" into at least one endpoint, without duplicates or port 0.

        An absolute path names a file that holds the address.
        """
        found = tuple(part.strip() for part in self.text.split(","))
        for index, text in enumerate(found):
            try:
                endpoint = parse_endpoint(text)
            except ConfigError as error:
                raise ConfigError(f"{self.name}: {error}, in {self.text!r}") from error
            if endpoint.port == 0 and not endpoint.is_file:
                raise ConfigError(f"{self.name}: {text!r} has port 0; use the actual port")
            if text in found[:index]:
                raise ConfigError(f"{self.name}: {text!r} occurs twice in {self.text!r}")
        return found

    def refused(self, wanted: str) -> ConfigError:
        return ConfigError(f"{self.name} must be {wanted}, got {self.text!r}")


class CheckedEnviron:
    """An environment whose variables are validated when read.

    For an unset variable, `environ[name]` raises ConfigError and `environ.get(name)` returns None.
    An empty variable is treated as unset.
    """

    def __init__(self, variables: Mapping[str, str], purpose: str) -> None:
        self._variables = variables
        self._purpose = purpose

    def get(self, name: str) -> Variable | None:
        text = self._variables.get(name, "")
        return Variable(name, text) if text.strip() else None

    def integer(self, name: str, *, below: tuple[int, str] | None = None) -> int:
        """Return an int >= 0, or 0 if unset; for `below`, see `Variable.integer`."""
        variable = self.get(name)
        return 0 if variable is None else variable.integer(low=0, below=below)

    def __getitem__(self, name: str) -> Variable:
        found = self.get(name)
        if found is None:
            raise ConfigError(f"{name} is not set, but {self._purpose}")
        return found


def any_set(variables: Mapping[str, str], names: tuple[str, ...]) -> bool:
    """Return whether any of the variables is set and not empty."""
    return any(variables.get(name, "").strip() for name in names)
