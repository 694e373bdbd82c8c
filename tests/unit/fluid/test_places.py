"""Places of GPUs on machines without any."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from sparsefleet import fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid.framework import places

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@pytest.fixture(autouse=True)
def nothing_said_yet() -> Iterator[None]:
    places._warn_no_gpu.cache_clear()
    yield
    places._warn_no_gpu.cache_clear()


def test_program_for_a_gpu_runs_on_the_cpu_which_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "sparsefleet.fluid"):
        place = fluid.CUDAPlace(0)
        with fluid.program_guard(fluid.Program(), fluid.Program()):
            x = fluid.data("x", [None, 2])
            double = x * 2.0
            feeder = fluid.DataFeeder([x], place)
            exe = fluid.Executor(fluid.CUDAPlace(1))
            rows = [(np.ones(2, "float32"),)]
            (found,) = exe.run(feed=feeder.feed(rows), fetch_list=[double])
    assert found.tolist() == [[2.0, 2.0]]
    assert [record.getMessage() for record in caplog.records] == [
        "CUDAPlace: torch sees no GPU, using the CPU instead; set SPARSEFLEET_REQUIRE_CUDA=1 to "
        "make this an error"
    ]


def test_no_gpu_is_an_error_where_one_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEFLEET_REQUIRE_CUDA", "1")
    with pytest.raises(ConfigError, match="REQUIRE_CUDA is set, but torch sees no GPUs"):
        fluid.CUDAPlace(0)
    assert fluid.CPUPlace().is_cpu


def test_places_of_gpus_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fluid.cuda_places() == [fluid.CUDAPlace(0)]
    monkeypatch.setenv("FLAGS_selected_gpus", "3")
    assert fluid.cuda_places() == [fluid.CUDAPlace(3)]
    assert fluid.core.get_cuda_device_count() == 0
