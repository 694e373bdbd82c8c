from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.nn.counting_pull import CountingPull
from torch import Tensor, nn

from sparsefleet import _core, optim
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import (
    SparseEmbedding,
    SparseEmbeddingBag,
    apply_gradients,
    bind,
    embedding_dots,
    import_embedding,
)
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.serving import Predictor
from sparsefleet.serving.export import save_inference_model
from sparsefleet.store import LocalStore

Dots = Callable[[SparseEmbedding, Tensor, SparseEmbedding, Tensor], Tensor]
IDS = 12  # few: most ids repeat in a batch


def plain_dots(
    left: SparseEmbedding, left_ids: Tensor, right: SparseEmbedding, right_ids: Tensor
) -> Tensor:
    rows = left(left_ids)
    return (rows.unsqueeze(-2) * right(right_ids)).sum(-1)


class Net(nn.Module):
    """Scores, a bias for each, and another use of the rows on the right."""

    def __init__(self, dots: Dots, *, dim: int = 5, one_table: bool = False) -> None:
        super().__init__()
        self.dots = dots
        settings = {"padding_idx": 0, "optimizer": optim.SGD(lr=1.0)}
        self.left = SparseEmbedding("left", dim, **settings)
        self.right = SparseEmbedding("left" if one_table else "right", dim, **settings)
        self.biases = SparseEmbedding("biases", 1, optimizer=optim.SGD(lr=1.0))

    def forward(self, left_ids: Tensor, right_ids: Tensor) -> Tensor:
        scores = self.dots(self.left, left_ids, self.right, right_ids)
        return scores + self.biases(right_ids).squeeze(-1) + self.right(right_ids[:, 0]).sum()


def whole_rows(dim: int, seed: int) -> Tensor:
    """Small whole numbers: their sums are exact in any order."""
    return torch.from_numpy(np.random.default_rng(seed).integers(-4, 5, (IDS, dim))).float()


def net_of(dots: Dots, *, dim: int = 5, one_table: bool = False) -> tuple[Net, CountingPull]:
    net, store = Net(dots, dim=dim, one_table=one_table), LocalStore()
    bind(net, store)
    for seed, module in enumerate((net.left, net.right, net.biases)):
        import_embedding(module, whole_rows(module.dim, seed))
    return net, CountingPull(store)


def batch_of(seed: int, size: int = 9) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng((7, seed))
    shapes = ((size,), (size, 4))
    return tuple(torch.from_numpy(rng.integers(0, IDS, shape)) for shape in shapes)  # type: ignore[return-value]


def step_of(
    net: Net, pull: CountingPull, batch: tuple[Tensor, Tensor], *, planned: bool
) -> tuple[Tensor, dict[str, dict[int, list[float]]]]:
    """Return scores, and gradients by table and key of a loss with whole-number gradients."""
    pulled = None
    if planned:
        with StepRows(pull) as trial:
            net(*batch)
        lookups = LookupPlan.learn(trial, batch).lookups(batch)
        assert lookups is not None
        assert len(lookups) == 4
        pulled = pull_rows(lookups, pull)
        pull.calls.clear()
    with StepRows(pull, pulled=pulled) as step:
        scores = net(*batch)
        (scores * torch.arange(scores.numel()).view_as(scores)).sum().backward()
    assert step.had_backward
    assert not (planned and pull.calls)
    found = {}
    for table, (keys, sums) in step.gradients().items():
        assert len(set(keys.tolist())) == len(keys)
        found[table] = dict(zip(keys.tolist(), sums.tolist(), strict=True))
    return scores.detach(), found


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("one_table", [False, True])
@pytest.mark.parametrize("dim", [1, 5, 45])
def test_scores_and_gradients_are_exactly_those_of_torch(
    dim: int, one_table: bool, planned: bool
) -> None:
    for seed in range(3):
        outcomes = []
        for dots in (embedding_dots, plain_dots):
            net, pull = net_of(dots, dim=dim, one_table=one_table)
            outcomes.append(step_of(net, pull, batch_of(seed), planned=planned))
        (scores, gradients), (wanted, wanted_gradients) = outcomes
        assert torch.equal(scores, wanted)
        assert gradients == wanted_gradients


def test_fractions_agree_with_torch_to_rounding() -> None:
    tables = [SparseEmbedding(name, 300) for name in ("left", "right")]
    pair = nn.ModuleList(tables)
    store = LocalStore()
    bind(pair, store, optim.SGD(lr=1.0))
    ids = batch_of(3)
    scores = embedding_dots(tables[0], ids[0], tables[1], ids[1])
    torch.testing.assert_close(scores, plain_dots(tables[0], ids[0], tables[1], ids[1]))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((6,), (6,)),
        ((2, 3), (2, 3)),
        ((2, 3), (2, 3, 4)),
        ((), (5,)),
        ((0,), (0, 4)),
        ((3,), (3, 0)),
    ],
)
def test_ids_have_any_shape_that_begins_alike(
    left: tuple[int, ...], right: tuple[int, ...]
) -> None:
    net, _ = net_of(embedding_dots)
    left_ids, right_ids = (torch.randint(0, IDS, shape) for shape in (left, right))
    scores = embedding_dots(net.left, left_ids, net.right, right_ids)
    rows = net.left(left_ids).reshape(*left, *[1] * (len(right) - len(left)), 5)
    assert torch.equal(scores, (rows * net.right(right_ids)).sum(-1))


def test_two_uses_of_the_same_ids_and_a_forward_pass_made_twice_add_up() -> None:
    net, pull = net_of(embedding_dots)
    left_ids, right_ids = batch_of(1)

    def twice(step: StepRows) -> dict[int, list[float]]:
        for _ in range(2):
            embedding_dots(net.left, left_ids, net.right, right_ids).sum().backward()
        keys, sums = step.gradients()["left"]
        return dict(zip(keys.tolist(), sums.tolist(), strict=True))

    with StepRows(pull) as step:
        alone = twice(step)
        lookups = LookupPlan.learn(step, (left_ids, right_ids)).lookups((left_ids, right_ids))
    assert lookups is not None
    with StepRows(pull, pulled=pull_rows(lookups[:2], pull)) as step:
        assert twice(step) == alone


def test_a_planned_lookup_that_is_not_made_has_no_gradient() -> None:
    net, pull = net_of(embedding_dots)
    left_ids, right_ids = torch.tensor([1, 2]), torch.tensor([3, 0])
    skipped = torch.tensor([2, 9])
    with StepRows(pull) as trial:
        net.left(skipped)
        embedding_dots(net.left, left_ids, net.right, right_ids)
    batch = (skipped, left_ids, right_ids)
    lookups = LookupPlan.learn(trial, batch).lookups(batch)
    assert lookups is not None
    with StepRows(pull, pulled=pull_rows(lookups, pull)) as step:
        embedding_dots(net.left, left_ids, net.right, right_ids).sum().backward()
    gradients = step.gradients()
    assert gradients["left"][0].tolist() == [2, 1]
    assert gradients["left"][1][0].tolist() == [0.0] * 5  # beside padding
    assert gradients["right"][0].tolist() == [3]


def test_padding_alone_gives_zeros_and_no_gradient() -> None:
    net, pull = net_of(embedding_dots)
    with StepRows(pull) as step:
        scores = embedding_dots(
            net.left, torch.zeros(2).long(), net.right, torch.zeros(2, 3).long()
        )
        scores.sum().backward()
    assert scores.tolist() == [[0.0] * 3] * 2
    assert pull.calls == []
    assert step.gradients() == {}
    assert step.had_backward


def test_evaluation_creates_no_row_and_a_side_in_eval_gets_no_gradient() -> None:
    net, pull = net_of(embedding_dots)
    unknown = torch.tensor([IDS + 5])
    with StepRows(pull) as step, torch.no_grad():
        scores = embedding_dots(net.left, unknown, net.right, torch.tensor([1]))
    assert scores.tolist() == [0.0]
    assert not scores.requires_grad
    assert sum(len(rows.keys) for rows in pull.store.rows("left")) == IDS
    net.left.eval()
    with StepRows(pull) as step:
        embedding_dots(net.left, torch.tensor([3]), net.right, torch.tensor([1])).sum().backward()
    assert list(step.gradients()) == ["right"]


def test_rows_train_without_any_step() -> None:
    left, right = (SparseEmbedding(name, 5, optimizer=optim.SGD(lr=1.0)) for name in "ab")
    for seed, module in enumerate((left, right)):
        import_embedding(module, whole_rows(5, seed))
    scores = embedding_dots(left, torch.tensor([1, 1]), right, torch.tensor([2, 3]))
    scores.sum().backward()
    apply_gradients(nn.ModuleList([left, right]))
    wanted = whole_rows(5, 0)[1] - whole_rows(5, 1)[2] - whole_rows(5, 1)[3]
    assert torch.equal(left.eval()(torch.tensor(1)), wanted)


def test_scores_can_be_changed_in_place() -> None:
    net, pull = net_of(embedding_dots)
    with StepRows(pull) as step:
        scores = embedding_dots(net.left, torch.tensor([1]), net.right, torch.tensor([[2, 3]]))
        scores[:, 0] *= -1
        scores.sum().backward()
    wanted = whole_rows(5, 1)[3] - whole_rows(5, 1)[2]
    assert step.gradients()["left"][1].tolist() == [wanted.tolist()]


def test_a_second_backward_or_derivative_is_refused() -> None:
    net, pull = net_of(embedding_dots)
    ids = torch.tensor([1])
    with StepRows(pull):
        scores = embedding_dots(net.left, ids, net.right, ids)
        with pytest.raises(ConfigError, match="no second derivative"):
            scores.sum().backward(create_graph=True)
        scores = embedding_dots(net.left, ids, net.right, ids)
        scores.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            scores.sum().backward()


def test_an_exported_model_scores_alike(tmp_path: Path) -> None:
    net, pull = net_of(embedding_dots)
    net.eval()
    batch = batch_of(2)
    save_inference_model(tmp_path, net, {"left_ids": batch[0], "right_ids": batch[1]}, onnx=False)
    other = batch_of(5, size=4)
    found = Predictor(tmp_path).predict_all(
        {"left_ids": other[0].numpy(), "right_ids": other[1].numpy()}
    )
    with StepRows(pull, train=False):
        assert np.array_equal(next(iter(found.values())), net(*other).numpy())


def test_what_does_not_fit_is_refused() -> None:
    left, right = SparseEmbedding("a", 4), SparseEmbedding("b", 4)
    ids = torch.tensor([1, 2])
    with pytest.raises(
        ShapeError, match=r"\[3\], expected \[2\], the shape of the ids of table 'a'"
    ):
        embedding_dots(left, ids, right, torch.tensor([1, 2, 3]))
    with pytest.raises(ShapeError, match="'a' has width 4, table 'c' has width 5"):
        embedding_dots(left, ids, SparseEmbedding("c", 5), ids)
    with pytest.raises(ShapeError, match=r"convert them with .long\(\)"):
        embedding_dots(left, ids, right, ids.short())
    with pytest.raises(ShapeError, match="must be an int64 or int32 tensor, got list"):
        embedding_dots(left, [1, 2], right, ids)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="got a SparseEmbeddingBag"):
        embedding_dots(left, ids, SparseEmbeddingBag("d", 4), ids)  # type: ignore[arg-type]


def test_native_products_refuse_places_and_shapes_that_do_not_fit() -> None:
    rows, places = np.ones((2, 3), np.float32), np.array([0, 1], np.uint32)
    out = np.empty(2, np.float32)
    with pytest.raises(ShapeError, match="inverse names row 7 of 2"):
        _core.dot_rows(rows, places, rows, np.array([0, 7], np.uint32), out)
    with pytest.raises(ShapeError, match="do not match"):
        _core.dot_rows(rows, places, np.ones((2, 4), np.float32), places, out)
    with pytest.raises(ShapeError, match="do not match"):
        _core.dot_rows(rows, places, rows, places[:1], out[:1])
    with pytest.raises(ShapeError, match="sums .1, 3. do not have the shape of the rows .2, 3."):
        _core.sum_dot_gradients(out, rows, places, rows, places, None, rows[:1])
