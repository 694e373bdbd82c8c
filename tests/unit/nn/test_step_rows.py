from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from tests.unit.nn.counting_pull import CountingPull
from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.nn import SparseEmbedding, bind
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.pulled_rows import pull_rows
from sparsefleet.nn.step_rows import StepRows
from sparsefleet.store import Constant, LocalStore


def model_of(**widths: int) -> tuple[nn.ModuleDict, CountingPull]:
    model = nn.ModuleDict(
        {name: SparseEmbedding(name, dim, padding_idx=0) for name, dim in widths.items()}
    )
    store = LocalStore()
    bind(model, store)
    return model, CountingPull(store)


def as_dict(gradient: tuple[np.ndarray, np.ndarray]) -> dict[int, list[float]]:
    keys, sums = gradient
    assert len(set(keys.tolist())) == len(keys)
    return dict(zip(keys.tolist(), sums.tolist(), strict=True))


def test_lookups_of_all_tables_are_pulled_in_one_call_each_key_once() -> None:
    _, pull = model_of(ads=2, users=3)
    ads, more, users = torch.tensor([[1, 2], [2, 0]]), torch.tensor([2, 3]), torch.tensor([7, 7])
    pulled = pull_rows([Lookup("ads", 2, ads, padding_idx=0), Lookup("users", 3, users),
                        Lookup("ads", 2, more)], pull)  # fmt: skip
    assert pull.calls == [{"ads": [1, 2, 3], "users": [7]}]
    assert pulled.tables["ads"].rows.shape == (3, 2)
    assert pulled.tables["ads"].gather().shape == (6, 2)
    assert pulled.tables["users"].inverse.tolist() == [0, 0]


def test_planned_lookups_pull_nothing_in_the_forward_pass() -> None:
    model, pull = model_of(ads=2)
    ids = torch.tensor([[1, 2], [2, 0]])
    pulled = pull_rows([Lookup("ads", 2, ids, padding_idx=0)], pull)
    pull.calls.clear()
    with StepRows(pull, pulled=pulled) as step:
        out = model["ads"](ids)
        model["ads"](torch.tensor([5])).sum().backward()
    out.sum().backward()
    assert pull.calls == [{"ads": [5]}]
    assert out.shape == (2, 2, 2)
    assert out[1, 1].tolist() == [0, 0]
    assert as_dict(step.gradients()["ads"]) == {1: [1, 1], 2: [2, 2], 5: [1, 1]}
    assert [lookup.ids.tolist() for lookup in step.lookups] == [ids.tolist(), [5]]


def test_lookup_made_more_often_than_planned_takes_the_pulled_rows_again() -> None:
    model, pull = model_of(ads=2)
    ids = torch.tensor([1, 2, 1])
    pulled = pull_rows([Lookup("ads", 2, ids, padding_idx=0), Lookup("ads", 2, ids)], pull)
    with StepRows(pull, pulled=pulled) as step:
        first = model["ads"](ids)
        kept = first.detach().clone()
        first.mul_(3.0)  # in place: the second lookup must not see it
        second = model["ads"](ids)
        assert torch.equal(second, kept)
        (first + second).sum().backward()
    assert len(pull.calls) == 1
    assert as_dict(step.gradients()["ads"]) == {1: [8, 8], 2: [4, 4]}


def test_planned_lookup_that_is_not_made_has_no_gradient() -> None:
    model, pull = model_of(ads=2)
    made, skipped = torch.tensor([1, 2]), torch.tensor([2, 3])
    pulled = pull_rows([Lookup("ads", 2, ids, padding_idx=0) for ids in (skipped, made)], pull)
    with StepRows(pull, pulled=pulled) as step:
        model["ads"](made).sum().backward()
    assert as_dict(step.gradients()["ads"]) == {1: [1, 1], 2: [1, 1]}


def test_rows_that_no_loss_depends_on_have_no_gradient() -> None:
    model, pull = model_of(ads=2, users=2)
    with StepRows(pull) as step:
        model["users"](torch.tensor([1]))
        model["ads"](torch.tensor([4])).sum().backward()
    assert set(step.gradients()) == {"ads"}


def test_ids_changed_in_place_after_the_pull_are_pulled_again() -> None:
    model, pull = model_of(ads=2)
    ids = torch.tensor([1, 2])
    pulled = pull_rows([Lookup("ads", 2, ids, padding_idx=0)], pull)
    ids.add_(10)
    with StepRows(pull, pulled=pulled) as step:
        model["ads"](ids).sum().backward()
    assert pull.calls[1:] == [{"ads": [11, 12]}]
    assert set(as_dict(step.gradients()["ads"])) == {11, 12}


def test_output_may_be_changed_in_place_like_that_of_nn_embedding() -> None:
    model, pull = model_of(ads=2)
    ids = [torch.tensor([[1], [2]]), torch.tensor([3])]
    pulled = pull_rows([Lookup("ads", 2, part, padding_idx=0) for part in ids], pull)
    for rows in (None, pulled):
        with StepRows(pull, pulled=rows) as step:
            first, second = (model["ads"](part) for part in ids)
            squares = second * second  # keeps `second` for backward
            first.mul_(2.0)
            first.sum().backward()
            squares.sum().backward()
        found = as_dict(step.gradients()["ads"])
        assert found.keys() == {1, 2, 3}
        assert found[2] == [2, 2]


def test_gradients_add_up_over_several_backward_passes() -> None:
    model, pull = model_of(ads=2, users=2)
    with StepRows(pull) as step:
        loss = (model["ads"](torch.tensor([[1, 2]])) + model["users"](torch.tensor([[1, 2]]))).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    for table in ("ads", "users"):
        assert as_dict(step.gradients()[table]) == {1: [2, 2], 2: [2, 2]}


def test_all_padding_asks_for_nothing() -> None:
    model, pull = model_of(ads=2)
    with StepRows(pull) as step:
        out = model["ads"](torch.zeros(2, 3, dtype=torch.int64))
        out.sum().backward()
    assert pull.calls == []
    assert out.abs().sum() == 0
    assert step.gradients() == {}


def test_no_ids_give_no_rows() -> None:
    model, pull = model_of(ads=2)
    with StepRows(pull):
        assert model["ads"](torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, 2)


@pytest.mark.parametrize("how", ["step", "module", "no_grad", "inference_mode"])
def test_reading_creates_no_rows_and_leaves_no_gradient(how: str) -> None:
    model, pull = model_of(ads=2)
    modes = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}
    with StepRows(pull, train=how != "step") as step, modes.get(how, torch.enable_grad)():
        out = model.train(how != "module")["ads"](torch.tensor([1, 2]))
    assert not out.requires_grad
    assert pull.how == [{"train": False, "unknown": "zeros"}]
    assert step.gradients() == {}
    assert pull.store.stats()[0]["table.ads.rows"] == 0


def test_unknown_ids_read_as_each_table_says_in_one_call_for_each_way() -> None:
    model = nn.ModuleDict({
        name: SparseEmbedding(name, 1, initializer=Constant(5.0), unknown=unknown)
        for name, unknown in [("a", "zeros"), ("b", "initial"), ("c", "initial")]
    })  # fmt: skip
    store = LocalStore()
    bind(model, store)
    pull = CountingPull(store)
    ids = torch.tensor([1])
    lookups = [Lookup(name, 1, ids, unknown=model[name].unknown) for name in "abc"]
    with StepRows(pull, train=False, pulled=pull_rows(lookups, pull, train=False)):
        assert [model[name](ids).item() for name in "abc"] == [0, 5, 5]
    assert [sorted(call) for call in pull.calls] == [["a"], ["b", "c"]]


def test_steps_of_threads_are_apart() -> None:
    model, pull = model_of(ads=2)
    found: dict[int, dict[int, list[float]]] = {}
    meet = threading.Barrier(2, timeout=30)

    def train(number: int) -> None:
        with StepRows(pull) as step:
            out = model["ads"](torch.tensor([number]))
            meet.wait()
            (out * number).sum().backward()
            found[number] = as_dict(step.gradients()["ads"])

    threads = [threading.Thread(target=train, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {1: {1: [1, 1]}, 2: {2: [2, 2]}}


def test_step_left_out_of_order_is_named() -> None:
    _, pull = model_of(ads=2)
    outer, inner = StepRows(pull), StepRows(pull)
    with outer:
        with inner:
            with pytest.raises(ConfigError, match="innermost first"):
                outer.__exit__(None, None, None)
