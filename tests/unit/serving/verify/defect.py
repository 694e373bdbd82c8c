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
    """What is wrong, and how the gate must call it."""

    name: str
    check: CheckName
    finding: str
    make: Callable[[Path], Setup]
    """Makes it in a folder of its own."""
