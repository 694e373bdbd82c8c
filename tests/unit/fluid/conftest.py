"""Each test has its own programs, names, scopes and ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_programs(fresh_programs: None) -> Iterator[None]:
    yield
    if "sparsefleet.fluid.collective.ranks" in sys.modules:
        ranks = sys.modules["sparsefleet.fluid.collective.ranks"]
        ranks._present = ranks._alone
