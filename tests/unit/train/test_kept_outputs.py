from __future__ import annotations

import torch

from sparsefleet.train.module_workload import KeptOutputs


def test_outputs_stay_as_they_were_whatever_is_kept_later() -> None:
    kept = KeptOutputs()
    outputs = [torch.randn(300, 2) for _ in range(500)]  # more than two blocks
    copies = [kept.keep(output) for output in outputs]
    for output, copy in zip(outputs, copies, strict=True):
        assert torch.equal(output, copy)


def test_outputs_lie_side_by_side_in_one_allocation() -> None:
    kept = KeptOutputs()
    first, second = kept.keep(torch.zeros(8, 2)), kept.keep(torch.ones(4))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert second.data_ptr() == first.data_ptr() + first.nbytes


def test_shape_and_dtype_are_kept_and_the_graph_is_not() -> None:
    kept = KeptOutputs()
    half = kept.keep(torch.ones(2, 0, 3, dtype=torch.bfloat16))
    scalar = kept.keep(torch.tensor(1.5, requires_grad=True) * 2)
    turned = kept.keep(torch.arange(6.0).view(2, 3).T)
    assert half.shape == (2, 0, 3)
    assert half.dtype == torch.bfloat16
    assert scalar.item() == 3.0
    assert not scalar.requires_grad
    assert turned.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


def test_an_output_larger_than_a_block_gets_one_of_its_size() -> None:
    large = torch.randn(1 << 18)
    assert torch.equal(KeptOutputs().keep(large), large)


def test_a_sparse_output_is_kept_as_it_is() -> None:
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(KeptOutputs().keep(sparse).to_dense(), torch.eye(3))
