"""From a trained model to files, and to a module that predicts."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.unit.serving.export.shop_model import (
    Shop,
    as_tensors,
    batch,
    chances,
    exported_shop,
    needed,
    trained_shop,
)
from torch import Tensor, nn

from sparsefleet.errors import ConfigError, ExportError, FeedError, IoError
from sparsefleet.nn import SparseEmbedding, bind
from sparsefleet.serving.export import load_inference_model, save_inference_model, verify_export
from sparsefleet.serving.export.manifest import ExportManifest
from sparsefleet.serving.export.row_file import open_tables
from sparsefleet.store import LocalStore, Uniform

DROPPED = ("user", "label")


def test_export_is_pruned_to_what_its_target_needs() -> None:
    directory, manifest = exported_shop()
    schema = manifest.schema
    assert [str(item) for item in schema.inputs] == [
        "counts: float32[batch, 2]",
        "items: int64[batch, 3]",
        "tags: int64[tags], offsets int64[batch]",
        "shops: int64[shops], offsets int64[batch + 1]",
    ]
    assert [str(target) for target in schema.targets] == ["chance: float32[batch]"]
    assert [entry.name for entry in manifest.tables] == ["items", "tags", "shops/all"]
    assert sorted(load_file(directory / manifest.parameters)) == [
        "hidden.bias",
        "hidden.weight",
        "score.bias",
        "score.weight",
    ]


def test_schema_tells_tables_padding_and_unknown_of_lookups() -> None:
    _, manifest = exported_shop()
    lookups = [(x.table, x.ids, x.padding_id, x.unknown) for x in manifest.schema.lookups]
    assert lookups == [
        ("items", None, None, "zeros"),
        ("tags", "tags.values", 0, "initial"),
        ("shops/all", "shops.values", None, "zeros"),
    ]


def test_exported_rows_are_those_of_the_store() -> None:
    directory, manifest = exported_shop()
    _, store = trained_shop()
    tables = open_tables(directory, manifest.tables)
    for name, rows in tables.items():
        assert rows.entry.rows == store.info(name).size
        for chunk in store.rows(name):
            np.testing.assert_array_equal(rows.look_up(chunk.keys.view(np.int64)), chunk.values)


def test_loaded_module_predicts_what_the_model_does_by_name_and_by_position() -> None:
    directory, _ = exported_shop()
    served = load_inference_model(directory)
    for size in (1, 2, 17):
        inputs = batch(size, seed=size)
        given = as_tensors(needed(inputs, *DROPPED))
        found = served(**given)
        assert isinstance(found, Tensor)
        np.testing.assert_allclose(found.numpy(), chances(inputs), rtol=0, atol=1e-6)
        assert torch.equal(served(*given.values()), found)
    with pytest.raises(FeedError, match="inputs given both by position and by name: counts"):
        served(given["counts"], **given)
    with pytest.raises(FeedError, match="got 5 positional inputs, expected 4"):
        served(*given.values(), 3)


def test_manifest_survives_json_and_reports_golden_examples() -> None:
    _, manifest = exported_shop()
    assert ExportManifest.from_json(manifest.to_json(), "here") == manifest
    assert manifest.golden.examples == 9
    assert manifest.golden.largest_error <= 1e-6
    assert manifest.onnx.missing is None


def test_no_file_tells_where_the_source_of_the_model_lies() -> None:
    directory, manifest = exported_shop()
    for entry in manifest.files:
        assert b"shop_model" not in (directory / entry.name).read_bytes(), entry.name


class Ads(nn.Module):
    """ids int64[B], label float32[B] -> a score and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = SparseEmbedding("ads", 4, initializer=Uniform(-1.0, 1.0))
        self.head = nn.Linear(4, 1)

    def forward(self, ids: Tensor, label: Tensor) -> dict[str, Tensor]:
        score = self.head(self.rows(ids)).squeeze(1)
        return {"score": score, "loss": (score - label).square().mean()}


IDS, LABEL = torch.arange(6), torch.rand(6)


def trained_ads() -> tuple[Ads, LocalStore, np.ndarray]:
    """The model, its store, and the scores that it gives."""
    model, store = Ads(), LocalStore()
    bind(model, store)
    score = model(IDS, LABEL)["score"]
    return model, store, score.detach().numpy()


@pytest.mark.parametrize("row_format", ["float16", "int8"])
def test_error_of_a_narrow_format_is_returned_and_bounds_predictions(
    row_format: Any, tmp_path: Path
) -> None:
    model, _, wanted = trained_ads()
    manifest = save_inference_model(
        tmp_path, model, (IDS, LABEL), targets="score", rows=row_format, onnx=False
    )
    [entry] = manifest.tables
    assert 0 < entry.mean_error <= entry.largest_error <= 1.01 / 254
    assert 0 < manifest.golden.largest_error < 0.05
    found = load_inference_model(tmp_path)(IDS)
    assert isinstance(found, Tensor)
    # Errors of golden examples are relative where a prediction is larger than 1.
    errors = np.abs(found.numpy() - wanted) / np.maximum(1.0, np.abs(wanted))
    assert errors.max() <= manifest.golden.largest_error * 1.01


@pytest.mark.parametrize("row_format", ["float32", "int8"])
def test_rows_that_change_while_they_are_exported_are_those_of_one_moment(
    row_format: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store, wanted = trained_ads()
    usual = store.rows

    def rows_before_a_push(table: str, **more: Any) -> Any:
        moment = usual(table, **more)
        store.push(table, IDS.numpy(), np.full((6, 4), 100.0, np.float32), add=True)
        return moment

    monkeypatch.setattr(store, "rows", rows_before_a_push)
    manifest = save_inference_model(
        tmp_path, model, (IDS, LABEL), targets="score", rows=row_format, onnx=False
    )
    assert manifest.golden.largest_error <= (1e-6 if row_format == "float32" else 0.05)
    found = load_inference_model(tmp_path)(IDS)
    assert isinstance(found, Tensor)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=0.05)


def test_wrong_feeds_and_targets_are_reported_before_anything_is_written(tmp_path: Path) -> None:
    model, _, _ = trained_ads()
    batch = {"ids": IDS, "label": LABEL}
    for options, message in (
        ({"targets": "price"}, r"target 'price' is neither an output .*\(score, loss\)"),
        ({"targets": []}, "targets must be names of outputs"),
        (
            {"targets": "loss", "feeds": ["ids"]},
            "needs inputs that are not among the feeds .ids.: label",
        ),
        ({"targets": "score", "feeds": ["price"]}, "feed 'price' is not an input of the model"),
        ({"rows": "int4"}, "rows must be one of"),
        (
            {"golden": {"ids": IDS}},
            "golden has the inputs ids, expected the same inputs as .*: ids, label",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            save_inference_model(tmp_path / "export", model, batch, **options)
    with pytest.raises(ConfigError, match="forward takes 2 inputs .* but the example has 3"):
        save_inference_model(tmp_path / "export", model, (IDS, LABEL, 0))
    with pytest.raises(ConfigError, match="'ids' has a batch size of 1, expected at least 2"):
        save_inference_model(tmp_path / "export", model, (IDS[:1], LABEL[:1]))
    assert not (tmp_path / "export").exists()


def test_disk_that_is_full_at_any_file_leaves_the_export_before(tmp_path: Path) -> None:
    model, _, _ = trained_ads()
    first = save_inference_model(tmp_path, model, (IDS, LABEL), targets="score", onnx=False)
    sizes = sorted(entry.bytes for entry in first.files)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (10, *sizes[1:-1:2]):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(IoError, match="previous contents are unchanged.*too large"):
                save_inference_model(tmp_path, model, (IDS, LABEL), targets="score", onnx=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert verify_export(tmp_path) == first
        assert len(list(tmp_path.iterdir())) == 1 + len(first.files)


def test_target_may_be_a_module_or_a_function(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    inputs = torch.rand(5, 3)
    manifest = save_inference_model(tmp_path, model, inputs, targets="1", onnx=False)
    assert sorted(load_file(tmp_path / manifest.parameters)) == ["0.bias", "0.weight"]
    assert torch.equal(load_inference_model(tmp_path)(inputs), model[:2](inputs).detach())
    save_inference_model(
        tmp_path, model, inputs, targets=lambda out: {"twice": 2 * out}, onnx=False
    )
    served = load_inference_model(tmp_path)
    assert torch.equal(served(inputs), 2 * model(inputs).detach())
    assert served.manifest.schema.targets[0].name == "twice"


def test_model_that_cannot_be_recorded_or_repeated_is_reported(tmp_path: Path) -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    class Chance(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.rand(1)

    with pytest.raises(ExportError, match="Branches cannot be recorded as a graph"):
        save_inference_model(tmp_path, Branches(), torch.rand(4, 2), onnx=False)
    with pytest.raises(ExportError, match="Chance does not predict the same values as the model"):
        save_inference_model(tmp_path, Chance(), torch.rand(4, 2), onnx=False)
    assert list(tmp_path.iterdir()) == []


def test_modules_with_stores_of_their_own_for_one_table_are_refused(tmp_path: Path) -> None:
    model = nn.ModuleList([SparseEmbedding("ads", 2, store=LocalStore()) for _ in range(2)])
    with pytest.raises(ConfigError, match="share table 'ads' but use different stores"):
        save_inference_model(tmp_path, model, torch.zeros(2, dtype=torch.int64))


def test_training_continues_in_the_model_that_was_exported() -> None:
    model, _ = trained_shop()
    exported_shop()
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert isinstance(model, Shop)
