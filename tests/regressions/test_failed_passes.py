"""Reading stops after an error, even if the exception is kept; empty passes are reported."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.train.click_model import BCE, QUIET
from torch import Tensor, nn

from sparsefleet import fluid, optim
from sparsefleet.data import MultiSlot, Reader, ReaderConfig, Slot
from sparsefleet.fluid.paddle import reader
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Trainer

SLOTS = MultiSlot(Slot("ad", "uint64", ()), Slot("click", "float", ()))


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ads = SparseEmbedding("ads", 4)

    def forward(self, ad: Tensor) -> Tensor:  # noqa: ARG002
        raise ArithmeticError


def reading_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("sparsefleet-read", "sparsefleet-ahead"))]


@pytest.mark.parametrize("kind", ["reader", "generator"])
@pytest.mark.parametrize("call", ["fit", "evaluate", "predict"])
def test_reading_has_ended_while_the_error_is_held(tmp_path: Path, call: str, kind: str) -> None:
    (tmp_path / "part").write_text("1 7 1 1\n" * 5000)
    made = Reader(
        tmp_path / "part", SLOTS, 2, label="click", config=ReaderConfig(shell_command="cat; cat")
    )

    def generate() -> Iterator[object]:
        yield from made

    with Trainer(Fails(), BCE, optim.SGD(lr=0.1), config=QUIET) as trainer:
        with pytest.raises(ArithmeticError) as held:
            getattr(trainer, call)(made if kind == "reader" else generate)
        assert reading_threads() == []
    assert held.value.__traceback__ is not None


def test_processes_of_a_loader_end_when_feeding_fails() -> None:
    def texts() -> Iterator[tuple[str]]:
        while True:
            yield ("no number",)

    loader = fluid.io.DataLoader.from_generator([fluid.data("ad", [None, 1], "int64")], 4)
    both = reader.multiprocess_reader([texts, texts])
    loader.set_sample_generator(both, 2, places=fluid.CPUPlace())
    with pytest.raises(ValueError, match="fed to 'ad'") as held:
        next(iter(loader))
    assert multiprocessing.active_children() == []
    assert reading_threads() == []
    assert held.value.__traceback__ is not None


def test_a_training_without_a_batch_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    with Trainer(Fails(), BCE, optim.SGD(lr=0.1), config=QUIET) as trainer:
        assert trainer.fit([]).examples == 0
    assert "worker 0 got no batches from its data, so it trained on nothing" in caplog.text
