"""Values and gradients that Fluid 1.8.5 computed for the same programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.fluid import control_cases, labelling_cases, recurrent_cases  # noqa: F401  their cases
from tests.unit.fluid.program_cases import CASES, run_case

from sparsefleet import fluid

RECORDED = json.loads((Path(__file__).parent / "recorded_values.json").read_text())
TOLERANCE = 1e-5


def test_every_program_was_recorded() -> None:
    assert set(CASES) == set(RECORDED)


@pytest.mark.parametrize("name", CASES)
def test_program_computes_what_the_original_did(name: str) -> None:
    values, lods = run_case(fluid, name)
    assert len(values) == len(RECORDED[name])
    for value, lod, wanted in zip(values, lods, RECORDED[name], strict=True):
        assert (list(value.shape), str(value.dtype)) == (wanted["shape"], wanted["dtype"])
        assert lod == wanted["lod"]
        expected = np.array(wanted["values"]).reshape(wanted["shape"])
        np.testing.assert_allclose(value, expected, rtol=TOLERANCE, atol=TOLERANCE)
