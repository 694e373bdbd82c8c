from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.data.workers_in_process import WorkerOf, as_workers
from torch import nn

from sparsefleet import Trainer, TrainerConfig, optim, zoo
from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric
from sparsefleet.errors import ConfigError
from sparsefleet.train import SlotReport
from sparsefleet.train.slot_report import evaluate_by_slot

FEATURES = Features(
    Numeric("price"),
    Categorical("ad"),
    Categorical("noise"),
    MultiValued("tags"),
    label="click",
)


@pytest.fixture(scope="module")
def report() -> SlotReport:
    """Return the report of a model on data where only the ad, the price and the first tag matter,
    in this order.
    """
    rng = np.random.default_rng(0)
    size = 3000
    columns = {
        "price": rng.random(size, np.float32),
        "ad": rng.integers(6, size=size),
        "noise": rng.integers(6, size=size),
        "tags": [rng.integers(4, size=count) for count in rng.integers(0, 3, size=size)],
    }
    odds = 3.0 * (columns["ad"] % 2) + 1.5 * columns["price"] - 2.0
    columns["click"] = (rng.random(size) < 1 / (1 + np.exp(-odds))).astype(np.float32)
    torch.manual_seed(0)
    model = zoo.CtrDnn(FEATURES, hidden=(16,))
    config = TrainerConfig(quiet=True)
    loss = nn.functional.binary_cross_entropy_with_logits
    with Trainer(model, loss, optim.Adagrad(lr=0.1), config=config) as trainer:
        data = FEATURES.memory(columns, 300)
        trainer.fit(data, epochs=8)
        plain = trainer.evaluate(data)
        found = trainer.evaluate(data, by="slot")
    assert found.figures == pytest.approx(plain)
    return found


def test_what_matters_is_important_and_noise_is_not(report: SlotReport) -> None:
    assert list(report.importance)[:2] == ["ad", "price"]
    assert report.importance["ad"]["auc"] < -0.1
    assert report.importance["ad"]["loss"] > 5 * report.importance["price"]["loss"]
    for name in ("noise", "tags"):
        assert abs(report.importance[name]["auc"]) < 0.02


def test_calibration_covers_all_examples(report: SlotReport) -> None:
    assert sum(count for _, _, count in report.calibration) == 3000
    large = [(scored, label) for scored, label, count in report.calibration if count > 200]
    assert large
    assert all(abs(scored - label) < 0.15 for scored, label in large)


def test_slices_have_their_own_figures(report: SlotReport) -> None:
    ads = [one for one in report.slices if one.slot == "ad"]
    assert sum(one.examples for one in ads) == 3000
    assert {one.value for one in ads} == {"0", "1", "2", "3", "4", "5"}
    prices = [one for one in report.slices if one.slot == "price"]
    assert [one.value.split()[0] for one in prices][::3] == ["up", "above"]
    assert all(abs(one.examples - 750) < 10 for one in prices)
    assert not any(one.slot == "tags" for one in report.slices)


def test_the_page_has_pictures_and_needs_no_other_file(report: SlotReport, tmp_path: Path) -> None:
    report.write_html(tmp_path / "page.html", title="ads & more")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<svg") == 2
    assert "ads &amp; more" in text
    assert "http" not in text
    assert 'rect class="bar"' in text


def test_wrong_forms_are_refused() -> None:
    model = nn.Linear(2, 1)
    with Trainer(model, nn.MSELoss(), optim.SGD(lr=0.1), config=TrainerConfig(quiet=True)) as one:
        with pytest.raises(ConfigError, match="by must be None or 'slot', got 'user'"):
            one.evaluate([], by="user")  # type: ignore[call-overload]
        with pytest.raises(ConfigError, match="at least one batch"):
            one.evaluate([], by="slot")


class Odds(nn.Module):
    """Log-odds from a number that may be missing and a flag."""

    def __init__(self, num_logits: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(2, num_logits)

    def forward(self, price: torch.Tensor, is_new: torch.Tensor) -> torch.Tensor:
        inputs = torch.stack([torch.nan_to_num(price), is_new.float()], 1)
        logits: torch.Tensor = self.layer(inputs)
        return logits.squeeze(1)


def odd_columns() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    price = torch.randn(200, generator=generator)
    clicks = (price > 0).float()
    price[::4] = torch.nan
    return {"price": price, "is_new": price > 0.3}, clicks


def evaluated(model: nn.Module, loss: object, batch: tuple[object, torch.Tensor]) -> SlotReport:
    config = TrainerConfig(quiet=True)
    with Trainer(model, loss, optim.SGD(lr=0.1), config=config) as trainer:  # type: ignore[arg-type]
        trainer.fit([batch], epochs=3)
        return trainer.evaluate([batch], by="slot")


def test_missing_numbers_and_flags_have_slices_of_their_own() -> None:
    found = evaluated(Odds(), nn.BCEWithLogitsLoss(), odd_columns())
    sizes = {(one.slot, one.value.split()[0]): one.examples for one in found.slices}
    inputs, _ = odd_columns()
    num_new = int(inputs["is_new"].sum())
    assert sizes[("is_new", "1")] == num_new
    assert sizes[("is_new", "0")] == 200 - num_new
    assert sizes[("price", "missing")] == 50
    assert len([one for one in found.slices if one.slot == "price"]) == 5
    assert sum(one.examples for one in found.slices if one.slot == "price") == 200
    assert not any("nan" in one.value for one in found.slices)


def test_two_logits_give_the_report_of_their_second_class() -> None:
    inputs, clicks = odd_columns()
    found = evaluated(Odds(2), nn.CrossEntropyLoss(), (inputs, clicks.long()))
    assert found.figures["auc"] > 0.6
    assert sum(count for _, _, count in found.calibration) == 200
    assert all(one.examples > 0 for one in found.slices)


def test_what_has_no_probability_per_example_is_named_before_slots_are_shuffled() -> None:
    inputs, clicks = odd_columns()
    both = torch.stack([clicks, 1 - clicks], 1)
    with pytest.raises(ConfigError, match=r"one label .* labels of shape \[200, 2\] and pred"):
        evaluated(Odds(2), nn.BCEWithLogitsLoss(), (inputs, both))
    with pytest.raises(ConfigError, match=r"labels of shape \[200\] and predictions .* \[200, 3\]"):
        evaluated(Odds(3), nn.CrossEntropyLoss(), (inputs, clicks.long()))
    with pytest.raises(ConfigError, match="labels must be 0 or 1, got"):
        evaluated(Odds(), nn.BCEWithLogitsLoss(), (inputs, 3 * clicks))
    with pytest.raises(ConfigError, match="predictions must be probabilities in 0..1, got"):
        evaluated(Odds(), nn.MSELoss(), (inputs, clicks))


def test_workers_report_the_same_slices_as_one_worker_with_all_data() -> None:
    generator = torch.Generator().manual_seed(1)
    columns = {
        "ad": torch.randint(6, (200,), generator=generator),
        "price": torch.rand(200, generator=generator).round(decimals=1),
    }
    columns["price"][:100] = torch.nan  # one of two workers has no price
    scores = torch.rand(200, generator=generator)
    clicks = (torch.rand(200, generator=generator) < scores).float()

    def report(worker: WorkerOf, rows: slice) -> SlotReport:
        inputs = {name: column[rows] for name, column in columns.items()}
        return evaluate_by_slot(
            [(inputs, clicks[rows])],
            lambda batches: {"loss": float(len(list(batches)))},
            lambda _: scores[rows],
            worker,  # type: ignore[arg-type]
        )

    (alone,) = as_workers(1, lambda worker: report(worker, slice(None)))
    halves = (slice(0, 100), slice(100, 200))
    both = as_workers(2, lambda worker: report(worker, halves[worker.worker_index()]))
    assert both[0] == both[1]
    assert [one.value for one in both[0].slices] == [one.value for one in alone.slices]
    for one, wanted in zip(both[0].slices, alone.slices, strict=True):
        assert (one.slot, one.examples) == (wanted.slot, wanted.examples)
        assert one.figures == pytest.approx(wanted.figures)
    assert np.array(both[0].calibration) == pytest.approx(np.array(alone.calibration))
