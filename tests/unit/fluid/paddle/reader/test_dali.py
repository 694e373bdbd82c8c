"""Batches of DALI pipelines, and of stand-ins where DALI is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import Trainer, TrainerConfig, fluid
from sparsefleet.errors import ConfigError, DataError
from sparsefleet.fluid.paddle.reader.dali import DaliBatches
from sparsefleet.nn import ImageScaling

L = fluid.layers


class FakeOutput:
    """An output of a pipeline."""

    def __init__(self, tensor: torch.Tensor, is_dense: bool = True) -> None:
        self._tensor, self._is_dense = tensor, is_dense

    def is_dense_tensor(self) -> bool:
        return self._is_dense

    def as_tensor(self) -> torch.Tensor:
        return self._tensor


class FakePipeline:
    """Numbers samples from `first` on; overwrites its output in each run, as DALI does."""

    def __init__(self, batch_size: int = 3, first: int = 0, is_dense: bool = True) -> None:
        self.max_batch_size = batch_size
        self._next = first
        self._is_dense = is_dense
        self._images = torch.zeros(batch_size, 1, 2, 2, dtype=torch.uint8)
        self.built = 0

    def build(self) -> None:
        self.built += 1

    def reader_meta(self, name: str) -> dict[str, int]:
        assert name == "files"
        return {"epoch_size": 15, "number_of_shards": 2}

    def run(self) -> list[FakeOutput]:
        numbers = torch.arange(self._next, self._next + self.max_batch_size)
        self._next += self.max_batch_size
        self._images.copy_(numbers.reshape(-1, 1, 1, 1).expand_as(self._images))
        return [FakeOutput(self._images, self._is_dense), FakeOutput(numbers.reshape(-1, 1))]


@pytest.fixture(autouse=True)
def own_program() -> Iterator[None]:
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        yield


def inputs() -> tuple[fluid.Variable, fluid.Variable]:
    return fluid.data("image", [None, 1, 2, 2], "uint8"), fluid.data("label", [None, 1], "int64")


def numbers(batches: Any) -> list[list[int]]:
    return [images[:, 0, 0, 0].tolist() for images, _ in batches]


@pytest.mark.parametrize(
    ("last_batch", "wanted"),
    [
        ("fill", [[0, 1, 2], [3, 4, 5], [6, 7, 8]]),
        ("partial", [[0, 1, 2], [3, 4, 5], [6, 7]]),
        ("drop", [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_a_pass_has_the_samples_of_the_shard(last_batch: Any, wanted: list[list[int]]) -> None:
    batches = DaliBatches(FakePipeline(), reader_name="files", last_batch=last_batch)
    assert len(batches) == len(wanted)
    assert numbers(list(batches)) == wanted  # kept while the pipeline continues
    assert len(list(batches)) == len(wanted)


def test_without_a_size_a_pass_has_no_end() -> None:
    batches = DaliBatches(FakePipeline())
    assert batches.is_endless
    passes = iter(batches)
    assert numbers(islice(passes, 2)) == [[0, 1, 2], [3, 4, 5]]
    assert numbers(islice(passes, 1)) == [[6, 7, 8]]


def test_several_pipelines_feed_a_place_each() -> None:
    pipelines = [FakePipeline(2), FakePipeline(2, first=10)]
    batches = DaliBatches(pipelines, ["image", "label"], size=2)
    image, label = inputs()
    total = L.reduce_sum(L.cast(image, "float32"))
    labels = L.cast(label, "float32")
    program = fluid.CompiledProgram(fluid.default_main_program()).with_data_parallel(
        places=fluid.cpu_places(2)
    )
    exe = fluid.Executor(fluid.CPUPlace())
    (feed,) = batches
    sums, given = exe.run(program, feed, [total, labels])
    assert sums.tolist() == [4.0, 84.0]
    assert given[:, 0].tolist() == [0, 1, 10, 11]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pipelines": []}, "no pipelines"),
        ({"pipelines": [FakePipeline(2), FakePipeline(3)]}, r"the same batch size, got \[2, 3\]"),
        ({"pipelines": FakePipeline(), "last_batch": "pad"}, "must be fill, partial or drop"),
        ({"pipelines": FakePipeline(), "size": 0}, "size must be at least 1, got 0"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DaliBatches(**settings)


def test_outputs_that_do_not_fit_are_named() -> None:
    with pytest.raises(DataError, match="output 'image' of a DALI pipeline has samples of diff"):
        next(iter(DaliBatches(FakePipeline(is_dense=False), ["image", "label"])))
    with pytest.raises(ConfigError, match=r"1 names \['image'\] for a pipeline with 2 outputs"):
        next(iter(DaliBatches(FakePipeline(), ["image"])))


def real_pipeline(batch_size: int) -> Any:
    """One of DALI's on the CPU: pictures of a color, labelled with it."""
    dali = pytest.importorskip("nvidia.dali", reason="DALI is an extra: sparsefleet[dali]")
    fn, types = dali.fn, dali.types

    @dali.pipeline_def(batch_size=batch_size, num_threads=1, device_id=None)
    def pictures() -> Any:
        colors = fn.external_source(
            source=lambda info: np.array([info.idx_in_epoch % 4], "uint8"), batch=False
        )
        dots = fn.reshape(fn.cast(colors * 60, dtype=types.UINT8), shape=[1, 1, 1], layout="HWC")
        images = fn.transpose(fn.resize(dots, size=[2, 2]), perm=[2, 0, 1])
        return images, fn.cast(colors, dtype=types.INT64)

    return pictures()


def test_a_real_pipeline_trains_through_both_doors() -> None:
    model = nn.Sequential(ImageScaling([0.4], [0.3]), nn.Flatten(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(found: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(found, labels[:, 0])

    data = DaliBatches(real_pipeline(8), size=32)
    with Trainer(model, loss, optimizer, config=TrainerConfig(quiet=True)) as trainer:
        assert trainer.fit(data, epochs=2).examples == 64
    image, label = inputs()
    value = L.mean(L.cast(image, "float32") - 60.0 * L.cast(label, "float32"))
    exe = fluid.Executor(fluid.CPUPlace())
    for feed in DaliBatches(real_pipeline(4), ["image", "label"], size=8):
        assert exe.run(feed=feed, fetch_list=[value])[0].item() == 0.0
