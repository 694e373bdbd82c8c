"""What an update is called in its log: enough to choose which to read."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

__all__ = ["Kind", "UpdateName"]

Kind = Literal["delta", "whole"]

_SUFFIX = ".safetensors"
_NAME = re.compile(r"(delta|whole)-(\d{12})-([0-9a-f]{16})-([0-9a-f]{16})" + re.escape(_SUFFIX))


class UpdateName(NamedTuple):
    """One update; `str` of it is the name of its file.

    >>> name = UpdateName("delta", 7, "00112233aabbccdd", "8899aabbccddeeff")
    >>> str(name)
    'delta-000000000007-00112233aabbccdd-8899aabbccddeeff.safetensors'
    >>> UpdateName.parse(str(name)) == name
    True
    >>> UpdateName.parse("notes.txt") is None
    True
    """

    kind: Kind
    sequence: int
    """Rises by one with each moment that is published."""
    moment: str
    """16 hexadecimal digits: the moment after it. A delta and a whole of the same moment lead to
    the same rows; equal numbers without equal moments are of logs that were begun anew."""
    checksum: str
    """The first 16 digits of the SHA-256 of its bytes."""

    def __str__(self) -> str:
        return f"{self.kind}-{self.sequence:012d}-{self.moment}-{self.checksum}{_SUFFIX}"

    @classmethod
    def parse(cls, text: str) -> UpdateName | None:
        """None for what is no name of an update."""
        found = _NAME.fullmatch(text)
        if found is None:
            return None
        kind: Kind = "delta" if found[1] == "delta" else "whole"
        return cls(kind, int(found[2]), found[3], found[4])
