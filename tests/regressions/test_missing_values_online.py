"""Missing values that training accepted, and the exported model refused or scored as NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sparsefleet import Predictor
from sparsefleet.data import Csv, Field, Reader, hash64
from sparsefleet.errors import FeedError
from sparsefleet.nn import SparseEmbedding
from sparsefleet.serving.example_files import read_examples
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.export.feeds import check_feeds
from sparsefleet.serving.export.manifest import Schema

FIELDS = (
    Field("city", shape=(), hash_seed=2),
    Field("site", shape=(), hash_seed=3, missing=-7),
    Field("price", "float", (), missing=0.5),
)
CSV = "city,site,price\nUlm,s1,0.25\n,,\n"
WANTED = {
    "city": np.array([hash64("Ulm", 2), hash64("", 2)], np.uint64).view(np.int64).tolist(),
    "site": np.array([hash64("s1", 3), 2**64 - 7], np.uint64).view(np.int64).tolist(),
    "price": [0.25, 0.5],
}


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding("rows", 2)

    def forward(self, city: Tensor, site: Tensor, price: Tensor) -> Tensor:
        sums: Tensor = (self.rows(city) + self.rows(site)).sum(1)
        return sums + price


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("scores") / "export"
    price = torch.tensor([0.0, 1.0])
    example = {"city": torch.tensor([1, 2]), "site": torch.tensor([3, 4]), "price": price}
    save_inference_model(directory, Scores(), example, features=FIELDS, onnx=False)
    return directory


@pytest.fixture(scope="module")
def schema(export: Path) -> Schema:
    return Predictor(export).schema


def lists(inputs: Any) -> dict[str, list[Any]]:
    return {name: np.asarray(values).tolist() for name, values in inputs.items()}


def test_a_csv_file_of_examples_means_what_it_meant_in_training(
    schema: Schema, tmp_path: Path
) -> None:
    path = tmp_path / "day.csv"
    path.write_text(CSV)
    (trained,) = Reader(path, Csv(*FIELDS), 2)
    (served,) = read_examples(path, schema, 2)
    assert lists(trained) == lists(served) == WANTED


@pytest.mark.parametrize("gap", [None, float("nan")])
@pytest.mark.parametrize("as_array", [False, True])
def test_missing_numbers_of_a_prediction_are_filled(
    schema: Schema, gap: float | None, as_array: bool
) -> None:
    price: Any = [0.25, gap]
    if as_array:
        price = np.array(price, object if gap is None else np.float32)
    inputs = {"city": ["Ulm", ""], "site": ["s1", None], "price": price}
    assert lists(check_feeds(schema, inputs)) == WANTED


def test_a_prediction_for_missing_values_is_finite(export: Path) -> None:
    scores = Predictor(export).predict({"city": [""], "site": [None], "price": [None]})
    assert list(scores) == [0.5]


def test_none_without_a_value_for_it_is_refused_with_the_setting(schema: Schema) -> None:
    inputs = {"city": ["Ulm", None], "site": ["s1", "s2"], "price": [0.25, 1]}
    with pytest.raises(FeedError, match=r"'city' is object\[2\].*None needs .* missing= value"):
        check_feeds(schema, inputs)


def test_fractions_are_not_told_to_become_ids(schema: Schema) -> None:
    inputs = {"city": [1.5, 2.0], "site": [1, 2], "price": [0.25, 1]}
    with pytest.raises(FeedError, match="'city' is float64.*integers, or strings to hash"):
        check_feeds(schema, inputs)
