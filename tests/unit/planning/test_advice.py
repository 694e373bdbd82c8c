"""The advice for a job."""

from __future__ import annotations

import numpy as np
import pytest

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.planning import load_machine
from sparsefleet.planning.advice import PlanRequest, advise_job
from sparsefleet.planning.mode_trial import ModeResult, _at_equal_examples, recommend
from sparsefleet.planning.table_memory import find_optimizer, measure_row_bytes
from sparsefleet.store import LocalStore, TableSpec

COSTS = load_machine("amd-epyc")


@pytest.mark.parametrize(
    ("name", "floats"), [("sgd", 0), ("adagrad", 8), ("rowwise_adagrad", 1), ("adam", 17)]
)
def test_bytes_of_a_row_are_those_of_a_real_table(name: str, floats: int) -> None:
    row = measure_row_bytes(8, find_optimizer(name))
    assert (row.values, row.state) == (32, 4 * floats)
    assert 8 <= row.index < 40
    with LocalStore() as store:
        store.define(TableSpec(name="t", dim=8, optimizer=find_optimizer(name)))
        store.pull("t", np.arange(400_000))
        held = store.stats()[0]["table.t.memory_bytes"] / 400_000
    assert row.memory == pytest.approx(held, rel=0.1)


def test_unknown_optimizers_are_named_with_the_nearest() -> None:
    assert isinstance(find_optimizer("Rowwise-Adagrad"), optim.RowwiseAdagrad)
    with pytest.raises(ConfigError, match="got 'adagrat'; did you mean 'adagrad'"):
        find_optimizer("adagrat")


def test_more_rows_need_more_servers_and_a_higher_rate_more_workers() -> None:
    few = advise_job(PlanRequest(rows=1e8, dim=16, examples_per_s=1e5, modes=["async"]), COSTS)
    rows = advise_job(PlanRequest(rows=1e10, dim=16, examples_per_s=1e5, modes=["async"]), COSTS)
    fast = advise_job(PlanRequest(rows=1e8, dim=16, examples_per_s=5e5, modes=["async"]), COSTS)
    assert rows.plan_of("async").servers > 10 * few.plan_of("async").servers
    assert fast.plan_of("async").workers > 3 * few.plan_of("async").workers
    for advice in (few, rows, fast):
        found = advice.plan_of("async").predicted
        assert found is not None
        assert found.examples_per_s >= advice.request.examples_per_s
        assert advice.recommended == "async"


def test_geo_is_only_for_plain_sgd_and_prices_follow_machines() -> None:
    request = PlanRequest(
        rows=1e7, dim=8, optimizer="adam", examples_per_s=5e4, modes=["geo", "half_async"],
        price_per_hour=2.0,
    )  # fmt: skip
    advice = advise_job(request, COSTS)
    assert not advice.plan_of("geo").is_possible
    assert "needs plain SGD, got adam" in advice.plan_of("geo").reason
    chosen = advice.plan_of("half_async")
    assert chosen.price_per_hour == 2.0 * chosen.machines
    assert advice.recommended == "half_async"


def test_what_no_fleet_can_do_is_said() -> None:
    request = PlanRequest(rows=1e6, dim=8, examples_per_s=1e12, modes=["half_async"])
    advice = advise_job(request, COSTS)
    assert advice.recommended == ""
    assert "out of reach" in advice.plan_of("half_async").reason
    with pytest.raises(ConfigError, match="increase --memory"):
        advise_job(PlanRequest(rows=1e15, dim=8), COSTS)
    with pytest.raises(ConfigError, match="rows"):
        PlanRequest(rows=-1, dim=8)


def tried(mode: str, rate: float, loss: float, auc: float | None = None) -> ModeResult:
    end = 10 * rate
    points = [(5.0, end / 2, loss * end / 2), (10.0, end, loss * end)]
    return ModeResult(
        mode=mode, examples=int(end), seconds=10, examples_per_s=rate, auc=auc, points=points
    )


def test_the_fastest_mode_that_learns_as_well_as_local_is_recommended() -> None:
    results = _at_equal_examples(
        [tried("local", 100, 0.5), tried("sync", 80, 0.501), tried("async", 150, 0.502),
         tried("geo", 300, 0.6)]
    )  # fmt: skip
    chosen, reasons = recommend(results)
    assert chosen == "async"
    assert any(reason.startswith("geo is excluded: loss 0.6000") for reason in reasons)


def test_a_stricter_mode_wins_if_it_is_as_fast() -> None:
    results = _at_equal_examples([tried("local", 100, 0.5), tried("sync", 148, 0.5),
                                  tried("async", 150, 0.5)])  # fmt: skip
    chosen, reasons = recommend(results)
    assert chosen == "sync"
    assert "within 5% of the speed of async" in reasons[-1]


def test_a_lower_auc_after_as_many_examples_excludes_a_mode() -> None:
    results = _at_equal_examples(
        [tried("local", 100, 0.5, 0.80), tried("sync", 100, 0.5, 0.799),
         tried("async", 200, 0.5, 0.70)]
    )  # fmt: skip
    assert recommend(results)[0] == "sync"


def test_where_no_mode_learns_as_well_as_local_the_reasons_say_only_that() -> None:
    results = _at_equal_examples(
        [tried("local", 100, 0.5), tried("sync", 90, 0.6), tried("async", 200, 0.7)]
    )
    chosen, reasons = recommend(results)
    assert chosen == "sync"
    assert [reason.split(":")[0] for reason in reasons[:2]] == ["sync", "async"]
    assert reasons[2].startswith("no mode learns as well as local in this time; sync has the")
    assert len(reasons) == 3


def test_modes_that_failed_are_not_recommended() -> None:
    failed = ModeResult(mode="geo", error="needs plain SGD")
    assert recommend([tried("local", 100, 0.5), failed]) == ("local", ["no other mode completed"])
    assert recommend([failed])[0] == ""
