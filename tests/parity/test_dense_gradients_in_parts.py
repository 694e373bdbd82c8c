"""A dense gradient in parts has the same effect as a contiguous one, in a LocalStore and on
servers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from tests.support.servers import NativeServers

from sparsefleet import optim
from sparsefleet.errors import NonFiniteError, ShapeError
from sparsefleet.store import DenseSpec, LocalStore, Store

SPEC = DenseSpec(name="parts", size=3_007, optimizer=optim.SGD(lr=1.0), min_block_size=1_000)


@pytest.fixture(params=["local", "remote-1", "remote-2"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "local":
        with LocalStore() as made:
            yield made
    else:
        with NativeServers(int(request.param[-1])) as servers, servers.connect() as made:
            yield made


def test_a_dense_gradient_in_parts_is_pushed_as_the_whole(store: Store) -> None:
    store.define(SPEC)
    gradient = np.random.default_rng(0).normal(size=SPEC.size).astype(np.float32)
    cuts = [0, 1, 1, 700, 1_503, 1_504, 3_000]  # some of them at the boundaries between servers
    parts = np.split(gradient, cuts)
    values = np.empty(SPEC.size, np.float32)
    result = store.push_many({}, {"parts": parts}, values={"parts": values})
    assert result.applied == SPEC.size
    np.testing.assert_array_equal(values, -gradient)
    np.testing.assert_array_equal(store.pull_dense("parts"), -gradient)
    with pytest.raises(ShapeError, match="'parts'"):
        store.push_many({}, {"parts": parts[:-1]})


@pytest.mark.parametrize("policy", ["raise", "reject_row"])
def test_a_bad_value_in_one_part_keeps_all_of_them_from_being_applied(
    store: Store, policy: Literal["raise", "reject_row"]
) -> None:
    spec = replace(SPEC, name=policy, non_finite=policy)
    store.define(spec)
    parts = [np.ones(1_000, np.float32), np.ones(2_007, np.float32)]
    parts[1][5] = np.inf
    if policy == "raise":
        with pytest.raises(NonFiniteError, match="element 1005 .*inf"):
            store.push_many({}, {policy: parts})
    else:
        assert store.push_many({}, {policy: parts}).rejected_non_finite == 1
    np.testing.assert_array_equal(store.pull_dense(policy), np.zeros(spec.size, np.float32))
