"""Errors about a config, in terms of the command line that it was made from."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from sparsefleet.errors import ConfigError

__all__ = ["naming_options"]


@contextlib.contextmanager
def naming_options(owner: str, **options: str) -> Iterator[None]:
    """Name options instead of the fields of a config in a ConfigError that the block raises.

    owner: the class name of the config. options: by field, where the option has a different name.

    >>> with naming_options("Config", grace_s="--grace-seconds"):
    ...     raise ConfigError("Config.grace_s must be > Config.start_port, got 0")
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: --grace-seconds must be > --start-port, got 0
    """

    def option(found: re.Match[str]) -> str:
        return options.get(found[1], f"--{found[1].replace('_', '-')}")

    try:
        yield
    except ConfigError as error:
        text = re.sub(rf"\b{owner}\.(\w+)", option, str(error))
        if text == str(error):
            raise
        raise ConfigError(text) from error
