from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.train.module_workload import as_batch, run_module


class Shows(nn.Module):
    def forward(self, *positional: Any, **named: Any) -> Any:
        return positional, named


def test_pair_is_inputs_and_labels() -> None:
    ids, labels = torch.arange(6).view(3, 2), torch.zeros(3)
    batch = as_batch((ids, labels), 4, labelled=True)
    assert batch.inputs is ids
    assert batch.labels is labels
    assert (batch.number, batch.size) == (4, 3)


def test_last_of_a_longer_tuple_is_the_labels() -> None:
    parts = [torch.zeros(3, 2), torch.ones(3, 1), torch.full((3,), 2.0)]
    batch = as_batch(parts, 1, labelled=True)
    assert batch.labels is parts[2]
    assert run_module(Shows(), batch.inputs)[0] == (parts[0], parts[1])


def test_size_comes_from_labels_where_inputs_are_ragged() -> None:
    values, offsets = torch.arange(10), torch.tensor([0, 4, 7])
    assert as_batch(((values, offsets), torch.zeros(3)), 1, labelled=True).size == 3


@pytest.mark.parametrize(
    ("inputs", "positional", "named"),
    [
        (torch.ones(2), 1, ()),
        ((torch.ones(2), torch.ones(2)), 2, ()),
        ([torch.ones(2)], 1, ()),
        ({"ids": torch.ones(2), "counts": torch.ones(2)}, 0, ("ids", "counts")),
    ],
)
def test_inputs_reach_the_model_by_their_kind(
    inputs: Any, positional: int, named: tuple[str, ...]
) -> None:
    batch = as_batch((inputs, torch.zeros(2)), 1, labelled=True)
    found = run_module(Shows(), batch.inputs)
    assert len(found[0]) == positional
    assert tuple(found[1]) == named


def test_numpy_arrays_become_tensors_over_the_same_memory() -> None:
    ids, labels = np.arange(4), np.zeros(4, np.float32)
    batch = as_batch(({"ids": ids}, labels), 1, labelled=True)
    ids[0], labels[1] = 77, 5.0
    assert batch.inputs["ids"][0] == 77
    assert batch.labels[1] == 5.0


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    backwards = np.arange(3)[::-1]
    batch = as_batch((frozen, backwards), 1, labelled=True)
    assert batch.inputs.tolist() == [0, 1, 2]
    assert batch.labels.tolist() == [2, 1, 0]


def test_named_tuples_stay_what_they_are() -> None:
    class Ragged(NamedTuple):
        values: Any
        offsets: Any

    ragged = Ragged(np.arange(3), np.array([0, 1]))
    batch = as_batch((ragged, np.zeros(2), np.zeros(2)), 1, labelled=True)
    assert isinstance(batch.inputs[0], Ragged)
    assert isinstance(batch.inputs[0].values, torch.Tensor)


def test_whole_batch_is_input_without_labels() -> None:
    centers, others = torch.zeros(5), torch.zeros(5)
    batch = as_batch((centers, others), 1, labelled=False)
    assert len(batch.inputs) == 2
    assert batch.labels is None
    assert batch.size == 5


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (torch.zeros(3, 2), r"a tensor of shape \[3, 2\]"),
        ({"ids": torch.zeros(3)}, "a dict"),
        ((torch.zeros(3),), "a tuple of 1"),
    ],
)
def test_batch_without_labels_is_refused_with_what_was_found(raw: Any, found: str) -> None:
    with pytest.raises(ConfigError, match=f"batch 9 must be .*got {found}.*loss=None"):
        as_batch(raw, 9, labelled=True)


def test_array_of_objects_is_refused_with_its_batch() -> None:
    with pytest.raises(ConfigError, match="batch 2: an array cannot be converted to a tensor"):
        as_batch((np.array(["a", None], object), np.zeros(2)), 2, labelled=True)


def test_examples_are_counted_by_a_tensor_before_values_and_offsets() -> None:
    ads = (torch.zeros(7), torch.tensor([0, 3]))
    named = {"ads": ads, "dense": torch.zeros(2, 5)}
    assert as_batch(named, 1, labelled=False).size == 2
    assert as_batch((ads, torch.zeros(2, 5)), 1, labelled=False).size == 2
