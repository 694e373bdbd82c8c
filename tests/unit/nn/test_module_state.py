from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.servers import NativeServers
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError, ShapeError
from sparsefleet.nn import SparseEmbedding, apply_gradients, bind
from sparsefleet.store import Evict, LocalStore


class Model(nn.Module):
    """Two embeddings of one table, one of another, and a dense layer."""

    def __init__(self, dim: int = 2) -> None:
        super().__init__()
        self.users = SparseEmbedding("users", dim, eviction=Evict(min_count=1))
        self.ads = SparseEmbedding("ads", 3, optimizer=optim.Adam())
        self.friends = SparseEmbedding("users", dim, eviction=Evict(min_count=1))
        self.top = nn.Linear(1, 1)


def trained(model: Model, *, store: LocalStore | None = None) -> Model:
    bind(model, store or LocalStore())
    ids = torch.tensor([1, 2, -3])
    for _ in range(3):
        (model.users(ids).sum() + model.friends(ids + 1).sum() + model.ads(ids).sum()).backward()
        apply_gradients(model)
    return model


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


def sorted_rows(state: dict[str, Any]) -> dict[str, Any]:
    if state["rows"] != "here":
        return state
    order = state["keys"].argsort()
    return {
        name: value[order] if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
    }


def test_state_dict_through_a_file_gives_the_same_rows_back(tmp_path: Path) -> None:
    model = trained(Model())
    torch.save(model.state_dict(), tmp_path / "model.pt")
    state = torch.load(tmp_path / "model.pt", weights_only=True)
    assert sorted(state["users._extra_state"]["keys"].tolist()) == [-3, -2, 1, 2, 3]
    assert state["friends._extra_state"] == {"format": 1, "rows": "shared"}
    assert state["users._extra_state"]["counters"].shape == (5, 1)
    for bound_first in (True, False):
        other = Model()
        if bound_first:
            bind(other, LocalStore())
        other.load_state_dict(state)
        bind(other, LocalStore())
        for name in ("users", "ads", "friends"):
            loaded = getattr(other, name).get_extra_state()
            assert same(sorted_rows(loaded), sorted_rows(state[f"{name}._extra_state"])), name


def test_loaded_rows_wait_for_the_optimizer_they_belong_to() -> None:
    """A module that names no optimizer gets it from the trainer, after load_state_dict."""
    first = SparseEmbedding("a", 1)
    bind(first, LocalStore(), optim.Adam())
    first(torch.tensor([5])).sum().backward()
    apply_gradients(first)
    second = SparseEmbedding("a", 1)
    second.load_state_dict(first.state_dict())
    assert same(second.state_dict(), first.state_dict())
    bind(second, LocalStore(), optim.Adam())
    assert same(second.state_dict(), first.state_dict())
    assert second.state_dict()["_extra_state"]["state"].abs().sum() > 0


def test_loading_replaces_the_rows_there_are() -> None:
    model = trained(Model())
    fresh = Model().state_dict()
    model.load_state_dict(fresh)
    assert model.users.get_extra_state()["keys"].tolist() == []
    assert model.users.eval()(torch.tensor([1])).tolist() == [[0.0, 0.0]]


def test_loaded_rows_are_used_without_binding() -> None:
    state = trained(Model()).state_dict()
    model = Model()
    model.load_state_dict(state)
    keys, values = (state["ads._extra_state"][name] for name in ("keys", "values"))
    assert torch.equal(model.ads.eval()(keys), values)


def test_rows_on_servers_are_not_in_the_state() -> None:
    with NativeServers(1) as servers, servers.connect() as store:
        model = trained(Model(), store=store)
        state = model.state_dict()
        assert state["users._extra_state"] == {"format": 1, "rows": "servers"}
        before = model.users.eval()(torch.tensor([1, 2]))
        model.load_state_dict(state)
        assert torch.equal(model.users(torch.tensor([1, 2])), before)


def test_rows_of_a_local_run_can_be_loaded_onto_servers() -> None:
    state = trained(Model()).state_dict()
    with NativeServers(2) as servers, servers.connect() as store:
        model = Model()
        model.load_state_dict(state)
        bind(model, store)
        saved = state["users._extra_state"]
        assert torch.equal(model.users.eval()(saved["keys"]), saved["values"])


def test_state_that_does_not_fit_is_refused() -> None:
    state = trained(Model()).state_dict()
    with pytest.raises(ShapeError, match="table 'users': rows to load have width 2, expected 4"):
        Model(dim=4).load_state_dict(state)
    with pytest.raises(ConfigError, match="table 'users': the state to load has format 9"):
        Model().load_state_dict({**state, "users._extra_state": {"format": 9}})
