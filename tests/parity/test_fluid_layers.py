"""Layers compared with results of PaddlePaddle 1.8.5, recorded by bench/fluid_parity.py."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.parity.fluid_cases.case import CASES, run_case, summary

from sparsefleet import fluid

FOLDER = Path(__file__).parent
for _file in sorted((FOLDER / "fluid_cases").glob("*.py")):
    importlib.import_module(f"tests.parity.fluid_cases.{_file.stem}")
RECORDED = json.loads((FOLDER / "fluid_layers_1_8_5.json").read_text(encoding="utf-8"))

OTHER_NAMES = {
    "attention",
    "expand_tensor",
    "eye",
    "inplace_abn",
    "logsumexp",
    "logsumexp_all",
    "reshape_tensor",
    "slice_tensor",
}
"""Cases in which 1.8.5 has more intermediate steps, so that its outputs have other names."""


def fits(promised: list[int], recorded: list[int]) -> bool:
    """Return whether sizes known on both sides agree; 1.8.5 marks unknown ones with <= 0."""
    return len(promised) == len(recorded) and all(
        own == other or min(own, other) < 1 for own, other in zip(promised, recorded, strict=True)
    )


def test_every_case_was_recorded() -> None:
    assert set(CASES) == set(RECORDED)


@pytest.mark.parametrize("name", CASES)
def test_layer_gives_what_the_original_gave(name: str) -> None:
    recorded: dict[str, Any] = RECORDED[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a startup program without parameters
        promised, results = run_case(fluid, CASES[name])
    assert promised["parameters"] == recorded["promised"]["parameters"]
    count = len(promised["outputs"])
    if name not in OTHER_NAMES:
        wanted = [output[0] for output in recorded["promised"]["outputs"]]
        assert [output[0] for output in promised["outputs"]] == wanted
    for own, other in zip(promised["outputs"], recorded["promised"]["outputs"], strict=True):
        assert fits(own[1], other[1]), own[0]
    by_name = {key: (array, lod) for key, array, lod in results}
    for place, (key, dtype, shape, numbers, lod) in enumerate(recorded["results"]):
        array, own_lod = results[place][1:] if place < count else by_name[key]
        assert (str(array.dtype), list(array.shape)) == (dtype, shape), key
        np.testing.assert_allclose(summary(array), numbers, rtol=2e-4, atol=2e-4, err_msg=key)
        if place < count:  # gradients carry no sequences here
            assert own_lod == lod, key
