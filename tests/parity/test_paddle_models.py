"""Inference models saved by PaddlePaddle 1.8.5, which bench/fluid_models.py recorded."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError
from sparsefleet.fluid.proto import framework_pb2

MODELS: dict[str, Any] = json.loads(
    (Path(__file__).parent / "paddle_models_1_8_5.json").read_text(encoding="utf-8")
)


def file_of(name: str, file: str) -> bytes:
    return zlib.decompress(base64.b64decode(MODELS[name]["files"][file]))


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_the_original_predicts_what_it_did_there(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    for file in model["files"]:
        (tmp_path / file).write_bytes(file_of(name, file))
    feed: dict[str, Any] = {}
    for key, values in model["feed"].items():
        feed[key] = np.array(values, model["types"][key])
        if key in model["lods"]:
            feed[key] = fluid.create_lod_tensor(feed[key], model["lods"][key])
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        program, names, targets = fluid.io.load_inference_model(
            str(tmp_path), exe, params_filename=model["params"]
        )
        found = exe.run(program, feed=feed, fetch_list=targets, return_numpy=False)
    assert names == list(feed)
    for value, wanted in zip(found, model["predicted"], strict=True):
        np.testing.assert_allclose(np.array(value), wanted, rtol=1e-4, atol=1e-5)


def test_a_program_of_the_original_is_parsed_and_taken_apart() -> None:
    data = file_of("next_word", "__model__")
    program = fluid.Program.parse_from_string(data)
    assert [op.type for op in program.global_block().ops][:3] == [
        "lookup_table",
        "lookup_table",
        "concat",
    ]
    described = framework_pb2.ProgramDesc.FromString(data)
    assert "emb" in [variable.name for variable in described.blocks[0].vars]


@pytest.mark.parametrize("cut", [1, 100, 1000])
def test_a_program_that_ends_too_soon_is_refused(cut: int) -> None:
    with pytest.raises(ProgramError, match="not a program"):
        fluid.Program.parse_from_string(file_of("next_word", "__model__")[:-cut])
