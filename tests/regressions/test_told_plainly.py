"""Errors and warnings that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import fluid, optim
from sparsefleet.data import MultiSlot, Reader, Slot
from sparsefleet.engine.clock import TimeShares, advise
from sparsefleet.errors import BadLineError, ConfigError
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer


class Clicks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 1)

    def forward(self, ad: Tensor) -> Tensor:
        return self.ads(ad).squeeze(1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "part").write_text("1 7 1 1\n1 8 1 0\n")
    return tmp_path / "part"


def trainer() -> Trainer:
    return Trainer(Clicks(), BCE, optim.SGD(lr=0.1), config=QUIET)


@pytest.mark.parametrize(
    ("label", "wanted"),
    [
        (Slot("like", "float"), "a tuple of 2 as labels"),
        (Slot("like", "uint64", ()), "a tensor of shape [2] and type int64 as labels"),
    ],
)
@pytest.mark.parametrize("call", ["fit", "evaluate"])
def test_a_label_that_the_loss_cannot_take_is_described(
    path: Path, call: str, label: Slot, wanted: str
) -> None:
    data = Reader(path, MultiSlot(Slot("ad", "uint64", ()), label), 2, label="like")
    with trainer() as made, pytest.raises((AttributeError, RuntimeError)) as caught:
        getattr(made, call)(data)
    assert wanted in "".join(getattr(caught.value, "__notes__", [wanted]))


def dataset_of(path: Path) -> fluid.InMemoryDataset:
    dataset = fluid.InMemoryDataset()
    dataset.set_use_var([fluid.data("ad", [None], "int64"), fluid.data("click", [None], "float32")])
    dataset.set_filelist([str(path)])
    return dataset


def test_a_dataset_given_to_fit_gets_advice_about_its_batches(path: Path) -> None:
    dataset = dataset_of(path)
    dataset.load_into_memory()
    dataset.local_shuffle(1)
    with trainer() as made, pytest.raises(ConfigError, match=r"dataset.batches\(label=...\)"):
        made.fit(dataset)


def test_a_bad_line_of_a_dataset_names_its_setting(path: Path) -> None:
    path.write_text("no line\n")
    with pytest.raises(BadLineError, match="set_max_bad_lines"):
        dataset_of(path).load_into_memory()


def test_the_size_of_what_is_being_loaded_is_refused(path: Path) -> None:
    path.write_text("no line\n")
    dataset = dataset_of(path)
    dataset.preload_into_memory()
    with pytest.raises(ConfigError, match="call wait_preload_done"):
        dataset.get_memory_data_size()
    with pytest.raises(BadLineError):
        dataset.wait_preload_done()


def test_a_run_without_servers_is_not_advised_to_take_more() -> None:
    shares = TimeShares(pull=9.0, compute=1.0)
    assert "more servers" in advise(shares)
    assert "servers" not in advise(shares, is_local=True)
