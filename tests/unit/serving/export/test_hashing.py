"""Models that take strings: hashed as the reader hashed them in training."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.support.served_models import Served, serving
from torch import Tensor, nn

from sparsefleet.data import CriteoTsv, Csv, Field, MemoryData, MultiSlot, Reader, Slot, hash64
from sparsefleet.data.features import Categorical, Features
from sparsefleet.errors import ConfigError, ExportError, FeedError
from sparsefleet.nn import SparseEmbedding, SparseEmbeddingBag
from sparsefleet.optim import SGD
from sparsefleet.serving import Predictor
from sparsefleet.serving.example_files import read_examples
from sparsefleet.serving.export import read_manifest, save_inference_model
from sparsefleet.serving.export.hashing import hashed_inputs
from sparsefleet.serving.http.examples import table_as_stream
from sparsefleet.store import Normal
from sparsefleet.train import CheckpointConfig, Trainer
from sparsefleet.zoo import CtrDnn

TEXT = "ad,site,app,tags\nshoes,s1,a1,x|y\n12,s2,a2,\n,s1,a3,z\n"
FORMAT = Csv(
    Field("ad", shape=(), hash_seed=5, missing=-1),
    Field("where", shape=(2,), columns=("site", "app"), hash_seed=2**64 - 1),
    Field("tags", hash_seed=9, separator="|"),
)
ROWS: list[dict[str, Any]] = [
    {"ad": "shoes", "where": ["s1", "a1"], "tags": ["x", "y"]},
    {"ad": "12", "where": ["s2", "a2"], "tags": []},
    {"ad": None, "where": ["s1", "a3"], "tags": ["z"]},
]


class Hashed(nn.Module):
    """Rows of unknown ids depend on the id, so that a wrong id gives a wrong score."""

    def __init__(self) -> None:
        super().__init__()
        wide = Normal(0.0, 1.0)
        self.ads = SparseEmbedding("ads", 3, initializer=wide, unknown="initial")
        self.tags = SparseEmbeddingBag("tags", 3, initializer=wide, unknown="initial")

    def forward(self, ad: Tensor, where: Tensor, tags: tuple[Tensor, Tensor]) -> Tensor:
        return (self.ads(ad) + 2 * self.ads(where).sum(1) + 3 * self.tags(tags)).sum(1)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    path = tmp_path / "train.csv"
    path.write_text(TEXT)
    return Reader(path, FORMAT, batch_size=3)


@pytest.fixture
def export(tmp_path: Path, reader: Reader) -> Path:
    directory = tmp_path / "export"
    (batch,) = reader
    save_inference_model(directory, Hashed(), batch, onnx=False, features=reader)
    return directory


def scores_of(export: Path, reader: Reader) -> np.ndarray:
    """Predictions for the ids that the reader made of the strings."""
    (batch,) = reader
    found = Predictor(export).predict(batch)
    assert isinstance(found, np.ndarray)
    return found


def test_strings_predict_what_the_ids_of_the_reader_predict(export: Path, reader: Reader) -> None:
    wanted = scores_of(export, reader)

    async def ask(served: Served) -> None:
        for content, kind in (
            (json.dumps({"examples": ROWS}).encode(), "application/json"),
            ("\n".join(map(json.dumps, ROWS)).encode(), "application/x-ndjson"),
            (b"ad,where,tags\nshoes,s1 a1,x|y\n12,s2 a2,\n,s1 a3,z\n", "text/csv"),
        ):
            answer = await served.post(content, kind)
            assert answer.status_code == 200, answer.text
            found = next(iter(answer.json()["predictions"].values()))
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        table = pa.Table.from_pylist(ROWS)
        stream = table_as_stream({name: table.column(name) for name in table.column_names}, {})
        answer = await served.post(stream, "application/vnd.apache.arrow.stream")
        assert answer.status_code == 200, answer.text
        with pa.ipc.open_stream(answer.content) as found_stream:
            np.testing.assert_allclose(found_stream.read_all().column(0), wanted, rtol=1e-6)

    on(export, ask)


def test_numpy_strings_and_files_of_examples_are_hashed_too(
    export: Path, reader: Reader, tmp_path: Path
) -> None:
    wanted = scores_of(export, reader)
    predictor = Predictor(export)
    strings = {
        "ad": np.array(["shoes", "12"]),
        "where": np.array([["s1", "a1"], ["s2", "a2"]], object),
        "tags": (np.array(["x", "y"]), np.array([0, 2])),
    }
    np.testing.assert_allclose(predictor.predict(strings), wanted[:2], rtol=1e-6)
    path = tmp_path / "examples.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    (inputs,) = read_examples(path, predictor.schema, 10)
    np.testing.assert_allclose(predictor.predict(inputs), wanted, rtol=1e-6)


def test_bad_values_are_named_with_example_input_value_and_wanted_form(export: Path) -> None:
    async def ask(served: Served) -> None:
        for changes, message in (
            ({"ad": 1.5}, "example 1, input 'ad' has the value 1.5, expected ad: int64[batch]"),
            (
                {"where": ["s1", True]},
                "example 1, input 'where' has the value true, expected where",
            ),
            (
                {"where": ["s1", None]},
                "example 1, input 'where' has the value null, expected where",
            ),
            ({"tags": ["x", {}]}, "example 1, input 'tags' has the value an object, expected tags"),
            ({"ad": 2**64}, "example 1, input 'ad': expected a value in -9223372036854775808.."),
        ):
            answer = await served.predict([ROWS[0], {**ROWS[0], **changes}])
            assert answer.status_code == 422
            assert message in answer.json()["error"]["message"]

    on(export, ask)


def test_description_of_the_service_shows_what_is_hashed(export: Path) -> None:
    async def ask(served: Served) -> None:
        api = (await served.client.get("/openapi.json")).json()
        example = api["components"]["schemas"]["Examples"]["properties"]["examples"]["items"]
        ad = example["properties"]["ad"]
        assert [kind["type"] for kind in ad["anyOf"]] == ["string", "integer", "null"]
        assert "seed 5" in ad["description"]
        model = (await served.client.get("/v1/model")).json()
        assert [item["input"] for item in model["schema"]["hashed"]] == ["ad", "where", "tags"]

    on(export, ask)


def test_model_that_was_exported_without_features_says_so(tmp_path: Path, reader: Reader) -> None:
    (batch,) = reader
    manifest = save_inference_model(tmp_path / "plain", Hashed(), batch, onnx=False)
    assert "hashed" not in manifest.to_json()
    assert read_manifest(tmp_path / "plain").digest == manifest.digest
    predictor = Predictor(tmp_path / "plain")
    inputs = {"ad": np.array(["shoes"]), "where": np.zeros((1, 2), np.int64)}
    with pytest.raises(FeedError, match="exported with features="):
        predictor.predict({**inputs, "tags": (np.zeros(0, np.int64), np.array([0]))})


@pytest.mark.parametrize(
    "data_of",
    [
        lambda reader: reader,
        lambda reader: MemoryData(reader),
        lambda reader: lambda: reader,
        lambda reader: lambda: MemoryData(reader),
        lambda reader: lambda: reader.map(lambda batch: batch),
    ],
    ids=["reader", "memory", "function", "function_of_memory", "function_of_mapped"],
)
def test_trainer_exports_how_its_reader_hashed(
    tmp_path: Path, data_of: Callable[[Reader], Any]
) -> None:
    path = tmp_path / "train.csv"
    path.write_text("ad,click\n" + "\n".join(f"{name},1" for name in "abcdef") + "\n")
    reader = Reader(
        path,
        Csv(Field("ad", shape=(), hash_seed=3), Slot("click", "float", ())),
        batch_size=2,
        label="click",
    )

    class Clicks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ads = SparseEmbedding("ads", 1)

        def forward(self, ad: Tensor) -> Tensor:
            return self.ads(ad).squeeze(1)

    checkpoints = CheckpointConfig(directory=tmp_path / "checkpoints")
    for name in ("trained", "nothing left to train on"):
        loss = nn.BCEWithLogitsLoss()
        with Trainer(
            Clicks(), loss, SGD(lr=0.1), checkpoints=checkpoints, resume="auto"
        ) as trainer:
            trainer.fit(data_of(reader))
            manifest = trainer.export(tmp_path / name, next(iter(reader)), onnx=False)
        assert manifest is not None
        assert [(item.input, item.seed) for item in manifest.schema.hashed] == [("ad", 3)]


def test_a_trainer_does_not_keep_what_its_data_function_returned(tmp_path: Path) -> None:
    features = Features(Categorical("ad", hash_seed=3), label="click")
    made = []

    def data() -> MemoryData:
        found = features.memory({"ad": ["a", "b"], "click": [0.0, 1.0]}, 2)
        made.append(weakref.ref(found))
        return found

    model = CtrDnn(features, hidden=(4,))
    with Trainer(model, nn.BCEWithLogitsLoss(), SGD(lr=0.1)) as trainer:
        trainer.fit(data)
        gc.collect()
        assert made[0]() is None
        batch = ({"ad": torch.tensor([1, 2])}, torch.ones(2))
        manifest = trainer.export(tmp_path, batch, onnx=False)
    assert len(made) == 1
    assert manifest is not None
    assert [(item.input, item.seed) for item in manifest.schema.hashed] == [("ad", 3)]


def test_categories_of_criteo_are_hashed_by_their_column(tmp_path: Path) -> None:
    model = nn.Sequential(SparseEmbedding("c", 1), nn.Flatten(1))

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, categories: Tensor) -> Tensor:
            found: Tensor = self.model(categories)
            return found

    example = {"categories": torch.ones(2, 26, dtype=torch.int64)}
    save_inference_model(tmp_path, Named(), example, onnx=False, features=CriteoTsv())
    schema = Predictor(tmp_path).schema
    (hashed,) = schema.hashed
    assert hashed.id_of("68fd1e64", 3) == hash64("68fd1e64", 3)


def test_features_that_name_no_input_are_refused(export: Path) -> None:
    schema = read_manifest(export).schema
    with pytest.raises(ConfigError, match="features hashes other, but the model"):
        hashed_inputs([Field("other", shape=(), hash_seed=1)], schema)
    with pytest.raises(ConfigError, match="features must be a Reader"):
        hashed_inputs([1], schema)  # type: ignore[list-item]
    assert hashed_inputs(MultiSlot(Slot("ad")), schema) == ()


def test_model_that_uses_the_length_of_an_input_names_its_cause(tmp_path: Path) -> None:
    class Lengths(nn.Module):
        def forward(self, s: Tensor) -> Tensor:
            return s.reshape(len(s))

    with pytest.raises(ExportError, match=r"fixes dimension 0 of input 's' to 3.*len\(s\)"):
        save_inference_model(tmp_path, Lengths(), torch.ones(3, 1), onnx=False)


def on(export: Path, ask: Any) -> None:
    async def run() -> None:
        async with serving(export, engine="torch") as served:
            await ask(served)

    asyncio.run(run())


def test_an_export_knows_the_vocabulary_of_a_feature(tmp_path: Path) -> None:
    features = Features(Categorical("input", vocabulary=("red", "blue")), label="y")
    model = nn.Sequential(SparseEmbedding("color", 4), nn.Linear(4, 1))
    model(torch.tensor([0, 1, 2]))  # creates the rows
    save_inference_model(tmp_path, model, torch.tensor([1, 2]), onnx=False, features=features)
    predictor = Predictor(tmp_path)
    (hashed,) = predictor.schema.hashed
    assert hashed.vocabulary == ("red", "blue")
    found = predictor.predict({"input": np.array(["blue", "green", "red"])})
    assert np.array_equal(found, predictor.predict({"input": np.array([2, 0, 1])}))
    assert len(np.unique(found)) == 3
