"""The names that bench/collective.py gives its models and ratios, for readers of its figures."""

from __future__ import annotations

from dataclasses import dataclass

MODELS = {"mnist": "MLP for MNIST", "ctr": "dense part of CTR-DNN"}
DELAYS_MS = (0, 1, 5)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A target: how many times as fast as another side this one should be."""

    side: str
    other: str
    target: float
    delays_ms: tuple[int, ...] = DELAYS_MS

    def key(self, model: str, delay_ms: int) -> str:
        """Return the key of the ratio among the figures."""
        return f"{model}, {delay_ms} ms: {self.side} over {self.other}"


WANTED = (
    Wanted("fused", "ddp", 0.95),
    Wanted("fused-4", "ddp-4", 0.95),
    Wanted("local-4", "fused", 2.0, DELAYS_MS[-1:]),
)
