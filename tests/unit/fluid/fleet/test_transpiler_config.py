from __future__ import annotations

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.fluid.fleet import DistributeTranspilerConfig, HashName, PSDispatcher, RoundRobin


def test_defaults_are_fluids() -> None:
    config = DistributeTranspilerConfig()
    assert config.as_dict() == {
        "slice_var_up": True,
        "enable_dc_asgd": False,
        "mode": "pserver",
        "print_log": False,
        "wait_port": True,
        "half_async": False,
        "completely_not_async": False,
        "geo_sgd_mode": False,
        "geo_sgd_need_push_nums": 100,
        "collective_mode": None,
        "nccl_comm_num": 1,
        "use_hierarchical_allreduce": False,
        "hierarchical_allreduce_inter_nranks": 0,
        "min_block_size": 8192,
        "split_method": None,
        "sync_mode": True,
        "runtime_split_send_recv": False,
    }


def test_sync_mode_and_runtime_split_exclude_each_other() -> None:
    config = DistributeTranspilerConfig()
    with pytest.raises(ConfigError, match="set sync_mode = False first"):
        config.runtime_split_send_recv = True
    config.sync_mode = False
    config.runtime_split_send_recv = True
    with pytest.raises(ConfigError, match="set runtime_split_send_recv = False first"):
        config.sync_mode = True
    for field in ("sync_mode", "runtime_split_send_recv"):
        with pytest.raises(ConfigError, match=f"{field} must be True or False, got None"):
            setattr(config, field, None)


@pytest.mark.parametrize("wrong", [8191, 0, "8192", 8192.0, True])
def test_min_block_size_is_checked(wrong: object) -> None:
    with pytest.raises(ConfigError, match="min_block_size must be an int >= 8192"):
        DistributeTranspilerConfig().min_block_size = wrong  # type: ignore[assignment]


def test_split_method_must_derive_from_the_dispatcher_directly() -> None:
    config = DistributeTranspilerConfig()
    config.split_method = HashName
    config.split_method = None

    class Indirect(RoundRobin):
        pass

    for wrong in (Indirect, int, "RoundRobin"):
        with pytest.raises(ConfigError, match="direct subclass of PSDispatcher"):
            config.split_method = wrong  # type: ignore[assignment]


def test_round_robin_continues_between_calls_until_reset() -> None:
    dealer: PSDispatcher = RoundRobin(["a:1", "b:1", "c:1"])
    assert dealer.dispatch(["w0", "w1"]) == ["a:1", "b:1"]
    assert dealer.dispatch(["w2", "w3"]) == ["c:1", "a:1"]
    dealer.reset()
    assert dealer.dispatch(["w4"]) == ["a:1"]
    assert dealer.eps == ["a:1", "b:1", "c:1"]


def test_hash_of_the_name_does_not_depend_on_order() -> None:
    names = [f"w{index}" for index in range(20)]
    dealt = HashName(["a:1", "b:1"]).dispatch(names)
    assert HashName(["a:1", "b:1"]).dispatch(reversed(names)) == dealt[::-1]
    assert set(dealt) == {"a:1", "b:1"}
