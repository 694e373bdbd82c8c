"""Requests that a new user sends by mistake to a service, and the errors that name the remedy."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsefleet import Predictor
from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.nn import SparseEmbedding
from sparsefleet.serving.export import save_inference_model
from sparsefleet.serving.export.manifest import Schema
from sparsefleet.serving.http.examples import read_examples
from sparsefleet.serving.http.refusal import Refusal

FEATURES = Features(Categorical("city", hash_seed=1), Categorical("movie"), Numeric("age"))


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding("rows", 2)

    def forward(self, city: Tensor, movie: Tensor, age: Tensor) -> Tensor:
        scores: Tensor = (self.rows(city) + self.rows(movie)).sum(1) + age
        return scores


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Schema:
    directory = tmp_path_factory.mktemp("scores") / "export"
    example = {
        "city": torch.tensor([1, 2]),
        "movie": torch.tensor([3, 4]),
        "age": torch.tensor([0.0, 1.0]),
    }
    save_inference_model(directory, Scores(), example, features=FEATURES, onnx=False)
    return Predictor(directory).schema


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"city": "Ulm", "movie": 3}', 'got an object with "city", "movie"'),
        ("[]", 'the body must be {"examples": [...]}, got a list'),
        ("3", "got 3"),
        ('{"examples": {"city": "Ulm"}}', '"examples" must be a list of objects, got an object'),
        (
            '{"examples": [{"city": "Ulm", "movie": "3", "age": 1}]}',
            "in which this input has a hash_seed or a vocabulary",
        ),
        (
            '{"examples": [{"city": null, "movie": 3, "age": 1}]}',
            "null needs a model whose features give this input a missing= value",
        ),
        (
            '{"examples": [{"city": "Ulm", "movie": 3, "age": null}]}',
            "null needs a model whose features give this input a missing= value",
        ),
        (
            '{"examples": [{"city": true, "movie": 3, "age": 1}]}',
            "expected city: int64[batch], as an id or a string",
        ),
        (
            '{"examples": [{"city": "Ulm", "movie": 3, "age": 1}, {"city": "Ulm", "movie": 3, '
            '"age": 1e39}]}',
            "example 1, input 'age' has a number too large for float32: 1e+39",
        ),
    ],
)
def test_a_wrong_body_is_answered_with_the_remedy(schema: Schema, body: str, message: str) -> None:
    with pytest.raises(Refusal) as raised:
        read_examples("application/json", body.encode(), schema, 100)
    assert message in str(raised.value)
