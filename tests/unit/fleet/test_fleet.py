"""The fleet object in one process, and its errors when it is misused."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparsefleet import optim
from sparsefleet.engine.distributed_model import DistributedModel
from sparsefleet.errors import CheckpointError, ConfigError, DeadlineError
from sparsefleet.fleet import Fleet, RoleInfo
from sparsefleet.modes import LocalConfig
from sparsefleet.nn import SparseEmbedding
from sparsefleet.serving.export import load_inference_model


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))


def local_fleet() -> Fleet:
    fleet = Fleet()
    fleet.init()
    return fleet


def trained(fleet: Fleet, mode: str | None = None) -> tuple[nn.Module, DistributedModel]:
    model = small_model()
    distributed = fleet.distribute(model, torch.optim.Adam(model.parameters(), lr=0.1), mode)
    fleet.init_worker()
    for step in range(5):
        with fleet.step():
            model(torch.arange(step, step + 6)).pow(2).mean().backward()
    fleet.model.flush()
    return model, distributed


def test_without_environment_the_process_is_its_own_only_worker() -> None:
    fleet = local_fleet()
    assert (fleet.is_worker(), fleet.is_server(), fleet.is_first_worker()) == (True, False, True)
    assert (fleet.worker_index(), fleet.worker_num(), fleet.server_num()) == (0, 1, 0)
    assert fleet.server_endpoints(to_string=True) == ""
    assert fleet.split_files(["a", "b"]) == ["a", "b"]


def test_hand_written_loop_learns_and_stops() -> None:
    fleet = local_fleet()
    _, distributed = trained(fleet)
    fleet.barrier_worker()
    assert fleet.all_gather(b"x") == [b"x"]
    assert distributed.store.info("ads").size == 10
    fleet.stop_worker()
    with pytest.raises(RuntimeError, match="must follow init_worker"):
        fleet.stop_worker()


def test_evaluation_creates_no_rows_and_keeps_the_training_flag() -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet)
    with fleet.evaluating() as evaluated:
        assert not evaluated.training
        unknown = evaluated(torch.tensor([1_000_000]))
        assert not unknown.requires_grad
    assert model.training
    assert distributed.store.info("ads").size == 10


@pytest.mark.parametrize("mode", ["local", "half_async", "async", "sync", "hybrid"])
def test_saved_model_resumes_exactly_where_it_was(mode: str, tmp_path: Path) -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet, mode)
    fleet.save_persistables(tmp_path / "model")
    ids = torch.arange(10)
    with distributed.evaluating():
        before = model(ids)

    other = local_fleet()
    again, reloaded = trained(other, mode)
    with other.step():
        again(ids).sum().backward()  # diverges, to be corrected by loading
    reloaded.load(tmp_path / "model")
    with reloaded.evaluating():
        assert torch.equal(again(ids), before)
    for each, net in ((fleet, model), (other, again)):
        with each.step():
            net(ids).sum().backward()
        each.model.flush()
    np.testing.assert_array_equal(distributed.flat.arrays["dense"], reloaded.flat.arrays["dense"])
    np.testing.assert_array_equal(
        distributed.store.pull("ads", np.arange(10)), reloaded.store.pull("ads", np.arange(10))
    )


def test_passes_end_and_begin_again() -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet, "half_async")
    fleet.end_pass()
    fleet.settle()
    fleet.begin_pass()
    with fleet.step():
        model(torch.arange(20, 24)).sum().backward()
    fleet.end_pass()
    fleet.settle()
    assert distributed.store.info("ads").size == 14
    fleet.stop_worker()


def test_saving_twice_into_one_directory_keeps_the_last(tmp_path: Path) -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet)
    fleet.save_persistables(tmp_path)
    with fleet.step():
        model(torch.arange(10)).sum().backward()
    fleet.save_persistables(tmp_path)
    wanted = distributed.flat.arrays["dense"].copy()
    with fleet.step():
        model(torch.arange(10)).sum().backward()
    distributed.load(tmp_path)
    np.testing.assert_array_equal(distributed.flat.arrays["dense"], wanted)
    assert len(list(tmp_path.glob("tables/ads-*"))) == 1


def test_inference_model_predicts_the_same_in_a_new_process_object(tmp_path: Path) -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet)
    fleet.save_inference_model(tmp_path, torch.arange(3), onnx=False)
    with distributed.evaluating():
        wanted = model(torch.arange(12))
    served = load_inference_model(tmp_path)
    assert torch.equal(served(torch.arange(12)), wanted)


def test_loading_something_else_than_a_model_says_so(tmp_path: Path) -> None:
    fleet = local_fleet()
    _, distributed = trained(fleet)
    with pytest.raises(CheckpointError, match=r"expected a checkpoint, found no manifest\.json"):
        distributed.load(tmp_path / "nothing")


def test_any_torch_optimizer_trains_locally_and_is_refused_elsewhere() -> None:
    fleet = local_fleet()
    torch.manual_seed(0)
    model = nn.Sequential(SparseEmbedding("ads", 4, optimizer=optim.SGD(lr=0.1)), nn.Linear(4, 1))
    rprop = torch.optim.Rprop(model.parameters(), lr=0.01)
    fleet.distribute(model, rprop, LocalConfig())
    before = model[1].weight.detach().clone()  # type: ignore[union-attr]
    fleet.init_worker()
    for _ in range(2):
        with fleet.step():
            model(torch.arange(3)).sum().backward()
    assert not torch.equal(before, model[1].weight)  # type: ignore[arg-type]
    fleet.stop_worker()
    with pytest.raises(ConfigError, match="tables do not support Rprop"):
        fleet.distribute(small_model(), rprop, "async")


def test_step_without_backward_says_what_is_missing() -> None:
    fleet = local_fleet()
    model, _ = trained(fleet)
    with (
        pytest.raises(ConfigError, match=r"call loss.backward\(\) or step.skip\(\) inside it"),
        fleet.step(),
    ):
        model(torch.arange(3))


def test_skipped_step_and_failed_step_change_nothing() -> None:
    fleet = local_fleet()
    model, distributed = trained(fleet)
    before = distributed.flat.arrays["dense"].copy()
    with fleet.step() as step:
        model(torch.arange(3)).sum().backward()
        step.skip()
    with suppress(ZeroDivisionError), fleet.step():
        model(torch.arange(3)).sum().backward()
        raise ZeroDivisionError
    distributed.flush()
    np.testing.assert_array_equal(distributed.flat.arrays["dense"], before)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_model_with_nothing_to_train_is_refused() -> None:
    with pytest.raises(
        ConfigError, match="Tanh has no SparseEmbedding and none .* nothing to train"
    ):
        local_fleet().distribute(nn.Tanh(), torch.optim.SGD([torch.zeros(1)], lr=0.1))


def test_calls_before_init_or_for_the_other_role_say_what_to_do() -> None:
    fleet = Fleet()
    with pytest.raises(RuntimeError, match=r"call fleet.init\(\) first"):
        fleet.is_worker()
    with pytest.raises(RuntimeError, match=r"call fleet.init\(\) first"):
        fleet.distribute(nn.Linear(1, 1), optim.SGD(lr=0.1))
    with pytest.raises(TypeError, match="role must be a RoleInfo or None, got str"):
        fleet.init("worker")  # type: ignore[arg-type]
    fleet.init()
    with pytest.raises(RuntimeError, match="fleet has no model yet"):
        fleet.init_worker()
    with pytest.raises(RuntimeError, match="is for servers, but no environment is set"):
        fleet.run_server()
    fleet.init(RoleInfo(kind="server", server_endpoints=("127.0.0.1:9100",)))
    with pytest.raises(RuntimeError, match="init_worker.* was called in a server"):
        fleet.init_worker()
    with pytest.raises(ConfigError, match="is not a directory"):
        fleet.init_server("/no/such/directory")


def test_server_that_never_comes_up_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from sparsefleet.engine import distributed_model
    from sparsefleet.store import RemoteStore, RemoteStoreConfig

    def hasty(endpoints: list[str], *, name: str, config: RemoteStoreConfig) -> RemoteStore:
        assert config.connect_timeout_s > 1.0
        return RemoteStore(endpoints, name=name, config=RemoteStoreConfig(connect_timeout_s=0.5))

    monkeypatch.setattr(distributed_model, "RemoteStore", hasty)
    fleet = Fleet()
    fleet.init(RoleInfo(kind="worker", server_endpoints=("127.0.0.1:1",)))
    model = small_model()
    fleet.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(DeadlineError, match="127.0.0.1:1"):
        fleet.init_worker()


def test_replicas_made_before_the_start_share_the_parameters() -> None:
    fleet = local_fleet()
    model = nn.Linear(2, 1)
    distributed = fleet.distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))
    replica = distributed.replicas(2)[1]
    fleet.init_worker()
    with distributed.step(replica):
        replica(torch.ones(1, 2)).sum().backward()
    assert torch.equal(replica.weight, model.weight)
    fleet.stop_worker()


def test_table_with_the_name_of_the_dense_parameters_is_refused() -> None:
    model = nn.Sequential(SparseEmbedding("dense", 4), nn.Linear(4, 1))
    with pytest.raises(ConfigError, match="table name 'dense', which is reserved for dense"):
        local_fleet().distribute(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.NAdam])
def test_optimizer_stepped_by_the_loop_is_refused_until_the_worker_stops(
    kind: type[torch.optim.Optimizer],
) -> None:
    fleet = local_fleet()
    model = nn.Linear(2, 1)
    optimizer = kind(model.parameters(), lr=0.1)
    fleet.distribute(model, optimizer)
    fleet.init_worker()
    with fleet.step():
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(ConfigError, match=r"step\(\) was called while fleet"):
            optimizer.step()
    fleet.stop_worker()
    optimizer.step()
