"""One thing that can go wrong between training and serving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from sparsefleet.serving.verify import CheckName


class Setup(NamedTuple):
    """What to verify, against what, and settings of the gate."""

    export: Path
    online: tuple[Any, ...] = ()
    settings: Mapping[str, Any] = MappingProxyType({})


class Defect(NamedTuple):
    """A defect, and the finding that the check must report."""

    name: str
    check: CheckName
    finding: str
    make: Callable[[Path], Setup]
    """Creates the defect in a separate folder."""
