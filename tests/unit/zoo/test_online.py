"""Every model takes raw examples online: strings, lists, sequences and missing values."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.service_process import ServiceProcess
from tests.unit.zoo.cases import CASES, LENGTH, NUM_IDS, Case

from sparsefleet import Predictor, Trainer, TrainerConfig, optim
from sparsefleet.cli.main import main
from sparsefleet.data.features import Feature, Features, IdFeature, Label, Numeric
from sparsefleet.data.reader import Reader

WORDS = tuple(f"word-{at}" for at in range(NUM_IDS))
TRAINING_ONLY = ("next", "unseen")
SEEDS = {"user": 1, "cats": 2, "movie": 3}
Serve = Callable[[Path], str]


def raw(feature: Feature) -> Feature:
    """Return a feature that takes strings, hashed or of a vocabulary, and may be missing."""
    if isinstance(feature, Numeric):
        return replace(feature, missing=20.0)
    assert isinstance(feature, IdFeature)
    if feature.name == "tags":
        return replace(feature, vocabulary=WORDS[:-2])
    return replace(feature, hash_seed=SEEDS[feature.table_name], missing=77)


def raw_columns() -> dict[str, list[Any]]:
    """Six examples with missing values, unknown words, empty and overlong lists."""
    rng = np.random.default_rng(3)

    def words(length: int) -> list[str]:
        return [WORDS[at] for at in rng.integers(NUM_IDS, size=length)]

    lengths = [2, 0, LENGTH + 3, 1, LENGTH, 3]
    columns: dict[str, list[Any]] = {
        "age": [31.0, None, 44.5, 20.0, None, 67.0],
        "I1": [1.0, 2.0, None, 0.5, -1.0, 3.0],
        "I2": [0.0, 1.0, 2.0, 3.0, None, 0.25],
        "user": ["Ulm", "Bonn", "", "\u00c5lesund", "Ulm", None],
        "C1": [WORDS[0], "never seen", None, WORDS[2], WORDS[3], WORDS[-1]],
        "C2": words(6),
        "tags": [words(length) for length in (1, LENGTH + 2, 0, 3, 0, 2)],
        "movie": [WORDS[at] for at in (3, 4, 3, 5, 6, 7)],
        "log_share": [-1.0, -2.0, None, -0.5, -1.5, -3.0],
    }
    for name in ("seen", *TRAINING_ONLY):
        columns[name] = [words(length) for length in lengths]
    columns["click"] = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
    columns["sale"] = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    columns["weight"] = [1.0] * 6
    return columns


def reader_of(features: Features) -> Reader:
    columns = raw_columns()
    return features.reader(
        None, features.arrow_stream(lambda: [pa.table(columns)]), batch_size=len(columns["age"])
    )


def label_of(case: Case) -> Label:
    if case.tasks:
        return Label("labels", columns=("click", "sale"))
    is_weight = case.finish is not None and case.finish is not tuple
    return Label("weight" if is_weight else "click")


def raw_examples(names: set[str]) -> list[dict[str, Any]]:
    """Return one object per example with these inputs, as an online system has them."""
    columns = raw_columns()
    columns["counts"] = list(map(list, zip(columns["I1"], columns["I2"], strict=True)))
    columns["cats"] = list(map(list, zip(columns["C1"], columns["C2"], strict=True)))
    return [{name: columns[name][at] for name in sorted(names)} for at in range(6)]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Serve an export and return the URL; one service switches between the models."""
    with ExitStack() as stack:
        services: list[ServiceProcess] = []
        folder = tmp_path_factory.mktemp("models")

        def serve_export(export: Path) -> str:
            export.rename(folder / export.name)
            if not services:
                services.append(stack.enter_context(ServiceProcess(folder)))
            url = services[0].url
            wanted = {"version": export.name}
            answer = httpx.post(f"{url}/v1/versions/active", json=wanted, timeout=60)
            assert answer.status_code == 200, answer.text
            export.symlink_to(folder / export.name)
            return url

        yield serve_export


@pytest.mark.job
@pytest.mark.parametrize("name", CASES)
def test_a_model_answers_raw_examples_online_as_it_was_trained(
    name: str, tmp_path: Path, serve: Serve
) -> None:
    torch.manual_seed(1)
    case = CASES[name]
    features = Features(*map(raw, case.features), label=label_of(case))
    online = features.without(*(one for one in TRAINING_ONLY if one in features))
    export, checkpoint = tmp_path / name, tmp_path / "checkpoint"
    config = TrainerConfig(quiet=True)
    model = case.build(features)
    with Trainer(model, case.loss, optim.Adagrad(lr=0.1), config=config) as trainer:
        trainer.fit(reader_of(features), epochs=5)
        asked = next(iter(reader_of(online)))
        wanted = trainer.predict([asked]).numpy()
        trainer.save(checkpoint)
        trainer.export(export, asked, onnx=False, features=online)
    predictor = Predictor(export)
    names = {one.name for one in predictor.schema.inputs}
    prepared = {key: value for key, value in asked[0].items() if key in names}
    assert np.abs(predictor.predict(prepared) - wanted).max() < 1e-6

    url = serve(export)
    examples = raw_examples(names)
    answer = httpx.post(f"{url}/v1/predict", json={"examples": examples}, timeout=60)
    assert answer.status_code == 200, answer.text
    answered = np.array(answer.json()["predictions"]["prediction"])
    assert np.abs(answered - wanted).max() < 1e-6

    file = tmp_path / "examples.json"
    file.write_text(json.dumps(examples))
    words = ["verify", str(export), "--online", url, "--online", str(checkpoint)]
    assert main([*words, "--examples", str(file)]) == 0
