"""Versions of a model that can be served, and who says which one is."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

__all__ = ["Catalogue", "Choice", "Version"]


class Version(NamedTuple):
    """An export in the catalogue."""

    name: str
    digest: str
    directory: Path
    created: str


class Choice(NamedTuple):
    """Which version shall be served, and which one was before."""

    active: str
    digest: str
    """Of the active one."""
    previous: str | None


class Catalogue(Protocol):
    """Versions by name. Thread-safe."""

    def versions(self) -> list[Version]:
        """All of them, the oldest first. What cannot be read is left out."""

    def chosen(self) -> str | None:
        """What shall be served, as far as it is said: changes when somebody chooses."""

    def choose(self, choice: Choice) -> str | None:
        """Says what shall be served, to all who share the catalogue, and after a restart. What
        `chosen` says now; None: as before."""

    def previous(self) -> str | None:
        """What was served before, as far as it is known."""
