"""Code blocks of Fluid guides, ours and the original ones, made runnable."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.parity.guide_blocks import OURS
from tests.parity.seed_text import SEEDS, Repair, blocks, repaired

__all__ = ["SOURCES", "block"]

SOURCES = [
    "ours",
    pytest.param(
        "seed",
        marks=pytest.mark.skipif(not SEEDS.exists(), reason="the documents are not at ../shared"),
    ),
]
"""For `pytest.mark.parametrize("source", SOURCES)`."""


def block(source: str, number: int, place: int, repairs: Sequence[Repair] = ()) -> str:
    """Return the text of one block, for our package."""
    text = OURS[number, place] if source == "ours" else blocks(number)[place]
    return repaired(text, repairs)
