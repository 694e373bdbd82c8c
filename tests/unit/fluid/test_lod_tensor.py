from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparsefleet import fluid
from sparsefleet.errors import ConfigError
from sparsefleet.fluid import LoDTensor

Lengths = st.lists(st.integers(0, 5), min_size=1, max_size=8)


@settings(deadline=None, max_examples=40)
@given(Lengths)
def test_lengths_and_offsets_say_the_same(lengths: list[int]) -> None:
    tensor = LoDTensor(torch.zeros(sum(lengths), 1))
    tensor.set_recursive_sequence_lengths([lengths])
    assert tensor.recursive_sequence_lengths() == [lengths]
    assert tensor.has_valid_recursive_sequence_lengths()
    again = LoDTensor(torch.zeros(sum(lengths) + 1, 1))
    again.set_lod(tensor.lod())
    assert again.recursive_sequence_lengths() == [lengths]
    assert not again.has_valid_recursive_sequence_lengths()


def test_levels_must_cover_each_other() -> None:
    tensor = LoDTensor(torch.zeros(7))
    tensor.set_recursive_sequence_lengths([[2, 1], [2, 2, 3]])
    assert tensor.lod() == [[0, 2, 3], [0, 2, 4, 7]]
    assert tensor.has_valid_recursive_sequence_lengths()
    tensor.set_lod([[0, 2, 4], [0, 2, 4, 7]])
    assert not tensor.has_valid_recursive_sequence_lengths()
    assert LoDTensor(torch.zeros(7)).has_valid_recursive_sequence_lengths()


@pytest.mark.parametrize("lod", [[[1, 2]], [[]], [[0, 3, 2]], [[0, 2], [2]]])
def test_malformed_offsets_are_refused(lod: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="LoD, level . offsets must begin with 0|LoD, level"):
        LoDTensor(torch.zeros(3)).set_lod(lod)


def test_lengths_below_zero_are_refused() -> None:
    with pytest.raises(ValueError, match="never decrease"):
        LoDTensor().set_recursive_sequence_lengths([[2, -1]])


def test_setting_copies_by_default() -> None:
    array = np.arange(3, dtype=np.uint8)
    copied, shared = LoDTensor(), LoDTensor()
    copied.set(array, fluid.CPUPlace())
    shared.set(array, fluid.CPUPlace(), zero_copy=True)
    array[0] = 9
    assert copied.numpy().tolist() == [0, 1, 2]
    assert shared.numpy().tolist() == [9, 1, 2]
    assert shared.tensor.dtype == torch.uint8
    tensor = torch.zeros(2)
    shared.set(tensor, zero_copy=True)
    assert shared.tensor is tensor


def test_values_come_out_without_a_copy() -> None:
    tensor = LoDTensor(torch.zeros(2, 3))
    assert np.shares_memory(np.asarray(tensor), tensor.tensor.numpy())
    assert not np.shares_memory(np.array(tensor), tensor.tensor.numpy())
    assert np.asarray(tensor, dtype=np.float64).dtype == np.float64
    assert tensor.shape() == tensor._get_dims() == [2, 3]
    assert len(tensor) == 2
    assert tensor._dtype() == "float32"
    assert tensor._place() == fluid.CPUPlace()


@pytest.mark.parametrize("array", [np.arange(6)[::-1], np.broadcast_to(np.int64(3), 4), [1, 2], 5])
def test_arrays_that_torch_cannot_share_are_taken_as_well(array: np.ndarray | list[int]) -> None:
    tensor = LoDTensor()
    tensor.set(array, zero_copy=True)
    assert tensor.numpy().tolist() == np.asarray(array).tolist()


def test_an_empty_tensor_says_so() -> None:
    assert LoDTensor().shape() == [0]
    assert not LoDTensor()._is_initialized()
    with pytest.raises(ConfigError, match="is empty; fill it with set"):
        LoDTensor().numpy()


def test_objects_are_refused_with_advice() -> None:
    with pytest.raises(TypeError, match="different lengths.*create_lod_tensor"):
        LoDTensor().set(np.array([[1], [2, 3]], dtype=object))


def test_create_lod_tensor_takes_lists_arrays_and_tensors() -> None:
    made = fluid.create_lod_tensor([[1, 2], [3]], [[2, 1]], fluid.CPUPlace())
    assert made.shape() == [3, 1]
    assert made.lod() == [[0, 2, 3]]
    rows = np.zeros((3, 5), np.float32)
    assert fluid.create_lod_tensor(rows, [[1, 1], [1, 2]], fluid.CPUPlace()).shape() == [3, 5]
    assert fluid.create_lod_tensor(made, [[3]], fluid.CPUPlace()).lod() == [[0, 3]]
    with pytest.raises(AssertionError, match=r"sequences of \[2, 1\]"):
        fluid.create_lod_tensor([[1, 2], [3]], [[1, 2]])
    with pytest.raises(AssertionError, match="do not match 3 rows"):
        fluid.create_lod_tensor(rows, [[1, 1]])
    with pytest.raises(TypeError, match="got str"):
        fluid.create_lod_tensor("abc", [[3]])


def test_create_random_int_lodtensor_has_both_borders() -> None:
    made = fluid.create_random_int_lodtensor([[200, 100]], [2], fluid.CPUPlace(), 3, 5)
    assert made.shape() == [300, 2]
    assert set(made.numpy().ravel().tolist()) == {3, 4, 5}


def test_arrays_of_tensors_take_anything_that_becomes_one() -> None:
    tensors = fluid.LoDTensorArray()
    tensors.append(np.zeros((2, 3)))
    tensors.append(LoDTensor(torch.zeros(1)))
    assert [tensor.shape() for tensor in tensors] == [[2, 3], [1]]


def test_a_module_gets_a_tensor_or_values_and_offsets() -> None:
    plain = LoDTensor(torch.zeros(2, 1))
    assert plain.model_input() is plain.tensor
    ids = fluid.create_lod_tensor([[1, 2], [], [3]], [[2, 0, 1]])
    values, offsets = ids.model_input()
    assert values.tolist() == [1, 2, 3]
    assert offsets.tolist() == [0, 2, 2]
    rows = fluid.create_lod_tensor(np.zeros((3, 4)), [[3]])
    assert rows.model_input()[0].shape == (3, 4)
    with pytest.raises(ConfigError, match="2 levels of LoD"):
        fluid.create_lod_tensor(np.zeros(3), [[1], [3]]).model_input()


def test_places_are_descriptions() -> None:
    assert fluid.CUDAPlace(1) == fluid.CUDAPlace(1) != fluid.CUDAPlace(0)
    assert fluid.CUDAPlace(1).get_device_id() == 1
    assert len(fluid.cpu_places(3)) == 3
    assert len(fluid.cuda_pinned_places(2)) == 2
    assert fluid.cuda_places([0, 2]) == [fluid.CUDAPlace(0), fluid.CUDAPlace(2)]
    assert fluid.is_compiled_with_cuda() == torch.cuda.is_available()
    assert fluid.core.get_cuda_device_count() == torch.cuda.device_count()
    with pytest.raises(ConfigError, match="device_id"):
        fluid.CUDAPlace(-1)


def test_cpu_places_are_as_many_as_cpu_num(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "3")
    assert len(fluid.cpu_places()) == 3
    monkeypatch.delenv("CPU_NUM")
    assert len(fluid.cpu_places()) == 1
