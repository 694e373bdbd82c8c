"""What the gate is to hold a model to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from sparsefleet.errors import ConfigError

__all__ = ["VerifyConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifyConfig:
    """How strict the gate is, and what it compares.

    >>> VerifyConfig(tolerance=-1)
    Traceback (most recent call last):
    sparsefleet.errors.ConfigError: VerifyConfig.tolerance must be >= 0, got -1
    """

    examples: str | os.PathLike[str] | None = None
    """A file with a column for each input; None: the golden examples of the export."""

    online_examples: str | os.PathLike[str] | None = None
    """The same examples, in the same order, as the online side has prepared them: its feature
    log. None: only what a service says it was fed is compared."""

    label: str | None = None
    """The column of labels, 0 or 1, in `examples`: then both sides get an AUC."""

    max_examples: int = 10_000
    """More examples of the file than these are not read."""

    tolerance: float = 1e-5
    """The largest difference of scores, relative to those above 1. Rows and dense parameters
    must be equal bit by bit whatever it is."""

    sample: int | None = None
    """Rows of a table that are compared with an online store; None: all."""

    seed: int = 0
    """Of the sample."""

    previous: str | os.PathLike[str] | None = None
    """The export that was online before: tells rows that are stale from others that differ."""

    updates: str | os.PathLike[str] | None = None
    """Where a trainer publishes changes of the export: a directory or Redis. They are applied
    before anything is compared, and the online side must have come as far."""

    pruned: tuple[str, ...] = ()
    """Parameters and tables of training that the export leaves out on purpose, as patterns."""

    expect: Mapping[str, str] = field(default_factory=dict)
    """Settings that must be so: `{"engine": "onnx", "rows": "float32"}`."""

    token: str | None = None
    """The bearer token of the service."""

    timeout_s: float = 90.0
    """Of one request to an online side; the first trace may take a service a minute."""

    def __post_init__(self) -> None:
        for name, least in (("max_examples", 1), ("sample", 1), ("tolerance", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ConfigError(f"VerifyConfig.{name} must be >= {least}, got {value}")
        if not self.timeout_s > 0:
            raise ConfigError(f"VerifyConfig.timeout_s must be > 0, got {self.timeout_s}")
