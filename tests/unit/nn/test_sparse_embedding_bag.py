from __future__ import annotations

import pytest
import torch

from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbeddingBag, apply_gradients
from sparsefleet.store import Constant


def bag(mode: str = "sum", **settings: object) -> SparseEmbeddingBag:
    return SparseEmbeddingBag("tags", 2, mode=mode, initializer=Constant(1.0), **settings)


IDS, OFFSETS = torch.tensor([5, 6, 7, 5]), torch.tensor([0, 0, 3, 4])  # bags of 0, 3, 1, 0


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("sum", [0.0, 3.0, 1.0, 0.0]),
        ("mean", [0.0, 1.0, 1.0, 0.0]),
        ("sqrtn", [0.0, 3**0.5, 1.0, 0.0]),
    ],
)
def test_ragged_bags_with_empty_ones(mode: str, wanted: list[float]) -> None:
    assert bag(mode)(IDS, OFFSETS)[:, 0].tolist() == pytest.approx(wanted)
    assert bag(mode)((IDS, OFFSETS))[:, 0].tolist() == pytest.approx(wanted)
    closed = torch.cat([OFFSETS, torch.tensor([4])])
    module = bag(mode, include_last_offset=True)
    assert module(IDS, closed)[:, 1].tolist() == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("mode", "wanted"), [("sum", [6.0, 0.0]), ("mean", [1.0, 0.0]), ("sqrtn", [6 / 20**0.5, 0.0])]
)
def test_padding_counts_neither_above_nor_below_the_line(mode: str, wanted: list[float]) -> None:
    module = bag(mode, padding_idx=0)
    ids = torch.tensor([[5, 0, 6], [0, 0, 0]])
    weights = torch.tensor([[2.0, 9.0, 4.0], [9.0, 9.0, 9.0]], requires_grad=True)
    out = module(ids, weights=weights)
    assert out[:, 0].tolist() == pytest.approx(wanted)
    out.sum().backward()
    assert weights.grad is not None
    assert torch.isfinite(weights.grad).all()
    assert (weights.grad[ids == 0] == 0).all()
    assert apply_gradients(module).applied == 2


def test_weights_that_come_to_nothing_give_zeros_not_infinity() -> None:
    weights = torch.tensor([[1.0, -1.0], [0.0, 0.0]], requires_grad=True)
    for mode in ("mean", "sqrtn"):
        out = bag(mode)(torch.tensor([[1, 2], [3, 4]]), weights=weights)
        out.sum().backward()
        assert torch.isfinite(out).all()
        assert torch.isfinite(weights.grad).all()


def test_fixed_bags_lie_along_the_last_dimension() -> None:
    assert bag()(torch.ones(4, 3, 5, dtype=torch.int64)).shape == (4, 3, 2)
    assert bag("mean")(torch.ones(4, 0, dtype=torch.int64)).tolist() == [[0.0, 0.0]] * 4


def test_no_bags_give_no_rows() -> None:
    none = torch.empty(0, dtype=torch.int64)
    for mode in ("sum", "mean", "sqrtn"):
        assert bag(mode)(none, none).shape == (0, 2)
        assert bag(mode)(none, torch.zeros(3, dtype=torch.int64)).tolist() == [[0.0, 0.0]] * 3


def test_evaluation_creates_no_rows() -> None:
    module = bag("mean").eval()
    assert module(IDS, OFFSETS).abs().sum() == 0
    assert module.store.stats()[0]["table.tags.rows"] == 0


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        (torch.tensor([1, 2]), "must start at 0, got 1"),
        (torch.tensor([0, 3, 2]), "must not decrease, but offset 2 is 2 after 3"),
        (torch.tensor([0, 5]), "reach 5, but there are only 4 ids"),
        (
            torch.tensor([0, 1], dtype=torch.int16),
            "must be an int64 or int32 tensor, got torch.int16",
        ),
        (torch.tensor([[0, 1]]), r"must be one-dimensional and on the CPU, got shape \(1, 2\)"),
        (torch.empty(0, dtype=torch.int64), "are empty, but 4 ids"),
        ([0, 1], "must be an int64 or int32 tensor, got list"),
    ],
)
def test_offsets_that_cut_no_bags_are_refused(offsets: object, message: str) -> None:
    with pytest.raises(ShapeError, match=f"table 'tags': offsets {message}"):
        bag()(IDS, offsets)


def test_last_offset_must_be_the_end_where_it_is_included() -> None:
    with pytest.raises(ShapeError, match="must end at the number of ids, 4"):
        bag(include_last_offset=True)(IDS, torch.tensor([0, 3]))
    with pytest.raises(ShapeError, match="at least one"):
        bag(include_last_offset=True)(IDS[:0], IDS[:0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((IDS,), "need offsets"),
        ((IDS.view(2, 2), OFFSETS), "ids with offsets must be one-dimensional"),
        (((IDS, OFFSETS), OFFSETS), "do not pass offsets again"),
        ((IDS, OFFSETS, torch.ones(3)), r"shape of ids, \(4,\), got torch.float32 of shape"),
        ((IDS, OFFSETS, torch.ones(4).double()), "must be float32"),
        ((IDS.short(), OFFSETS), "ids must be an int64 or int32 tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments: tuple, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        bag()(*arguments)


def test_mode_is_one_of_three() -> None:
    with pytest.raises(ConfigError, match="mode must be 'sum', 'mean' or 'sqrtn', got 'max'"):
        bag("max")
    assert "mode='sqrtn'" in repr(bag("sqrtn"))
