"""Inputs that the fuzz targets in tests/fuzz have found; also checks that the targets run."""

from __future__ import annotations

import random

import pytest
from tests.fuzz.__main__ import TARGETS, open_target
from tests.fuzz.checkpoints import CheckpointsTarget


@pytest.mark.parametrize("name", TARGETS)
def test_fuzz_target_runs_its_own_inputs(name: str) -> None:
    target, draw = open_target(name), random.Random(1)
    outcomes = [target.run(target.make(draw)) for _ in range(20)]
    assert any(outcome.startswith("refused") for outcome in outcomes), outcomes


def test_row_file_whose_column_names_are_not_utf8_is_corrupt() -> None:
    target = CheckpointsTarget()
    name = "delta/tables/words%2Fde/00000-of-00002-00000.parquet"
    raw = target.content(name).replace(b"values", b"\xffalues")
    assert target.run(target.input_of(name, raw)) == "refused"


def test_row_file_whose_row_group_names_another_column_is_corrupt() -> None:
    target = CheckpointsTarget()
    name = "delta/tables/words%2Fde/00000-of-00002-00000.parquet"
    whole = target.content(name)
    at = whole.rindex(b"values")  # the schema comes first, then the row groups
    raw = whole[:at] + b"value3" + whole[at + 6 :]
    assert target.run(target.input_of(name, raw)) == "refused"


@pytest.mark.parametrize("codec", [b"\x01", b"\x28", b"\xfe\xff\xff\xff\x0f"])  # -1, 20, 2**31 - 1
def test_row_file_with_an_unknown_codec_is_corrupt(codec: bytes) -> None:
    target = CheckpointsTarget()
    name = "delta/tables/words%2Fde/00000-of-00002-00000.parquet"
    whole = target.content(name)
    at = whole.rindex(b"key\x15\x00") + 4  # the field after the path is the codec
    footer = int.from_bytes(whole[-8:-4], "little") + len(codec) - 1
    raw = whole[:at] + codec + whole[at + 1 : -8] + footer.to_bytes(4, "little") + whole[-4:]
    assert target.run(target.input_of(name, raw)) == "refused"
