"""The parts of formats, and Criteo's records by the documented rules."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet.data import CriteoTsv, MultiSlot, Reader, Slot, hash64
from sparsefleet.errors import ConfigError

COUNTS = st.lists(st.one_of(st.none(), st.integers(-3, 10**7)), min_size=13, max_size=13)
CATEGORIES = st.lists(
    st.one_of(st.just(""), st.integers(0, 2**32 - 1).map(lambda value: f"{value:08x}")),
    min_size=26,
    max_size=26,
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), COUNTS, CATEGORIES), min_size=1, max_size=4))
def test_criteo_records_come_back_by_the_documented_rules(records: list[Any]) -> None:
    lines = [
        "\t".join([str(int(click)), *("" if x is None else str(x) for x in counts), *texts])
        for click, counts, texts in records
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day_0"
        path.write_text("\n".join(lines) + "\n")
        hashed = next(iter(Reader(path, CriteoTsv(), 10)))
        plain_format = CriteoTsv(categories="hex", counts="plain", missing_count=math.nan)
        plain = next(iter(Reader(path, plain_format, 10)))
    for row, (click, counts, texts) in enumerate(records):
        assert hashed["label"][row] == click
        for column, count in enumerate(counts):
            log = 0.0 if count is None else math.log1p(max(count, 0))
            assert hashed["counts"][row, column] == pytest.approx(log, rel=1e-6)
            found = plain["counts"][row, column]
            assert np.isnan(found) if count is None else found == np.float32(count)
        ids = hashed["categories"].view(np.uint64)[row].tolist()
        assert ids == [hash64(text, seed=column) for column, text in enumerate(texts)]
        assert plain["categories"][row].tolist() == [
            int(text, 16) if text else -1 for text in texts
        ]


def test_slots_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="slot 'ads': dtype must be 'uint64', 'float' or 'text'"):
        Slot("ads", "int64")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="slot 'ads': shape .* got \\(-1, 2\\)"):
        Slot("ads", "float", (-1, 2))
    with pytest.raises(ConfigError, match="Slot.name must be a non-empty string"):
        Slot("")
    with pytest.raises(ConfigError, match="two slots are named 'ads'"):
        MultiSlot(Slot("ads"), Slot("ads"))
    with pytest.raises(ConfigError, match="at least one slot"):
        MultiSlot()
    with pytest.raises(ConfigError, match="takes Slot objects, got a str"):
        MultiSlot("ads")  # type: ignore[arg-type]


def test_criteo_settings_that_make_no_sense_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="CriteoTsv.categories must be 'hash' or 'hex'"):
        CriteoTsv(categories="id")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="CriteoTsv.missing_count"):
        CriteoTsv(missing_count=math.inf)
