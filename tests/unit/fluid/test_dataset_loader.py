from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.feeding.data_loader import DatasetLoader

CPU = fluid.CPUPlace()


class RecordedDataset:
    """A Dataset of three files with batches of two: batch n has label n."""

    filelist = ("a", "b", "c")
    batch_size = 2

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.threads = 0
        self.had = 0

    def set_thread(self, thread_num: int) -> None:
        self.threads = thread_num

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for number in range(self.had, len(self.sizes)):
            size = self.sizes[number]
            self.had += 1
            ids = np.arange(2 * size).reshape(-1, 1)
            offsets = np.arange(0, 2 * size + 1, 2)
            yield {"ids": (ids, offsets), "label": np.full((size, 1), number)}

    def state_dict(self) -> dict[str, Any]:
        return {"had": self.had}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.had = state["had"]


def labels(feeds: Any) -> list[int]:
    return [int(feed["label"].numpy()[0, 0]) for feed in feeds]


def test_slots_become_tensors_over_the_readers_memory() -> None:
    dataset = RecordedDataset([2])
    (feed,) = fluid.io.DataLoader.from_dataset(dataset, CPU)()
    assert feed["ids"].lod() == [[0, 2, 4]]
    assert feed["ids"].shape() == [4, 1]
    assert feed["label"].lod() == []
    assert dataset.threads == 1


@pytest.mark.parametrize(("drop_last", "found"), [(True, [0, 1, 3]), (False, [0, 1, 2, 3, 4])])
def test_short_batches_are_dropped_if_requested(drop_last: bool, found: list[int]) -> None:
    dataset = RecordedDataset([2, 2, 1, 2, 1])
    assert labels(DatasetLoader(dataset, CPU, drop_last)) == found


@pytest.mark.parametrize(
    ("drop_last", "found"), [(True, [[0, 1], [2, 3]]), (False, [[0, 1], [2, 3], [4]])]
)
def test_several_places_get_a_batch_each(drop_last: bool, found: list[list[int]]) -> None:
    dataset = RecordedDataset([2] * 5)
    loader = DatasetLoader(dataset, [CPU, CPU], drop_last)
    assert [labels(group) for group in loader] == found
    assert dataset.threads == 2


def test_places_need_a_file_each() -> None:
    with pytest.raises(AssertionError, match="3 files for 4 places"):
        DatasetLoader(RecordedDataset([]), fluid.cpu_places(4))


def test_resumes_where_the_dataset_was() -> None:
    first = DatasetLoader(RecordedDataset([2] * 5), CPU)
    assert labels(islice(iter(first), 2)) == [0, 1]
    second = DatasetLoader(RecordedDataset([2] * 5), CPU)
    second.load_state_dict(first.state_dict())
    assert labels(second) == [2, 3, 4]
