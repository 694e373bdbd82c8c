"""Tables use the given optimizer, or refuse it by name; they never use another one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.unit.train.click_model import BCE, QUIET, Clicks, clicks
from torch import nn

from sparsefleet import optim
from sparsefleet.errors import ConfigError
from sparsefleet.fleet import Fleet
from sparsefleet.nn import SparseEmbedding
from sparsefleet.train import Callback, Epoch, Trainer

Make = Callable[[nn.Module], torch.optim.Optimizer]


def hooked(model: nn.Module, *, after: bool) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    register = optimizer.register_step_post_hook if after else optimizer.register_step_pre_hook
    register(lambda *_: None)
    return optimizer


class PlainClicks(nn.Module):
    """`Clicks` with an ordinary embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.EmbeddingBag(40, 4, mode="mean")
        self.head = nn.Linear(4, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.rows(ids)).squeeze(1)


def test_adamw_trains_tables_as_torch_does_with_rows_in_every_step() -> None:
    torch.manual_seed(0)
    model, plain = Clicks(), PlainClicks()
    plain.head.load_state_dict(model.head.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.3)
    twin = torch.optim.AdamW(plain.parameters(), lr=0.05, weight_decay=0.3)
    ids = torch.arange(39).view(13, 3)  # every row in every batch
    batch = (ids, (ids.float().mean(1) < 20).float())
    with Trainer(model, BCE, optimizer, config=QUIET, fleet=Fleet()) as trainer:
        trainer.evaluate([batch])
        store = trainer.distributed.store
        start = store.pull("ads", np.arange(39))
        with torch.no_grad():
            plain.rows.weight[:39] = torch.from_numpy(start)
        trainer.fit([batch] * 20)
        trained = store.pull("ads", np.arange(39))
        assert trainer.distributed.tables["ads"].optimizer == optim.AdamW(lr=0.05, l2=0.3)
    for _ in range(20):
        twin.zero_grad()
        BCE(plain(ids), batch[1]).backward()
        twin.step()
    wanted = plain.rows.weight[:39].detach().numpy()
    np.testing.assert_allclose(trained, wanted, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda m: torch.optim.RAdam(m.parameters()), "do not support RAdam"),
        (lambda m: torch.optim.NAdam(m.parameters()), "do not support NAdam"),
        (lambda m: torch.optim.Adam(m.parameters(), amsgrad=True), "Adam only with amsgrad=False"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=1.0, maximize=True), "negate the loss"),
        (lambda m: hooked(m, after=False), "do not support SGD with step hooks"),
        (lambda m: hooked(m, after=True), "do not support SGD with step hooks"),
    ],
)
def test_an_optimizer_that_tables_do_not_have_is_refused_by_name(make: Make, named: str) -> None:
    model = Clicks()
    with (
        pytest.raises(
            ConfigError, match=f"table 'ads' has no optimizer and cannot use the model's.*{named}"
        ),
        Trainer(model, BCE, make(model), config=QUIET, fleet=Fleet()) as trainer,
    ):
        trainer.fit(clicks())


def test_a_table_with_an_optimizer_of_its_own_may_stand_beside_it() -> None:
    model = nn.Sequential(
        SparseEmbedding("ads", 4, optimizer=optim.Adam(lr=0.1)), nn.Linear(4, 1), nn.Flatten(0)
    )
    optimizer = torch.optim.NAdam(model.parameters())
    data = [(torch.arange(8), torch.ones(8))] * 3
    with Trainer(model, BCE, optimizer, config=QUIET, fleet=Fleet()) as trainer:
        assert trainer.fit(data).last.steps == 3


@pytest.mark.parametrize(
    "make", [torch.optim.Adam, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.SGD]
)
def test_an_optimizer_that_has_taken_steps_loses_its_state_with_a_warning(
    make: Callable[..., torch.optim.Optimizer], caplog: pytest.LogCaptureFixture
) -> None:
    model = Clicks()
    momentum = {"momentum": 0.9} if make is torch.optim.SGD else {}
    optimizer = make(model.parameters(), lr=0.01, **momentum)
    for _ in range(2):  # the second trainer finds the optimizer as the first has left it
        with Trainer(model, BCE, optimizer, config=QUIET, fleet=Fleet()) as trainer:
            trainer.fit(clicks())
    assert not caplog.records
    model.head.weight.sum().backward()
    optimizer.step()
    with Trainer(model, BCE, optimizer, config=QUIET, fleet=Fleet()) as trainer:
        trainer.fit(clicks())
    assert f"this {make.__name__} has already taken steps" in caplog.text


@pytest.mark.parametrize("make", [torch.optim.LBFGS, torch.optim.SparseAdam])
def test_an_optimizer_that_training_cannot_step_is_refused_by_name(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    model = nn.Linear(3, 1)
    with pytest.raises(ConfigError, match=f"{make.__name__} is not supported, because it"):
        Trainer(model, BCE, make(list(model.parameters())), config=QUIET, fleet=Fleet())


class Changing(Callback):
    """Does something after every epoch, as a loop in plain torch would."""

    def __init__(self, change: Callable[[], object]) -> None:
        self.change = change

    def on_epoch_end(self, trainer: Trainer, epoch: Epoch) -> None:
        del trainer, epoch
        self.change()


@pytest.mark.parametrize("field", ["lr", "weight_decay", "lr in place"])
def test_a_setting_changed_during_training_is_refused(field: str) -> None:
    model = Clicks()
    rate = torch.tensor(0.1) if field == "lr in place" else 0.1
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def change() -> None:
        if isinstance(rate, torch.Tensor):
            rate.mul_(0.5)
        else:
            optimizer.param_groups[0][field] *= 0.5

    callbacks = [Changing(change)]
    with Trainer(
        model, BCE, optimizer, config=QUIET, callbacks=callbacks, fleet=Fleet()
    ) as trainer:
        trainer.fit(clicks())
        with pytest.raises(ConfigError, match=f"{field[:2]}.* of AdamW, group 0, was changed from"):
            trainer.fit(clicks())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("is_passed", [False, True])
def test_a_scheduler_stepped_by_the_user_is_refused(is_passed: bool) -> None:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = Trainer(
        model,
        BCE,
        optimizer,
        config=QUIET,
        callbacks=[Changing(scheduler.step)],
        schedule=scheduler if is_passed else None,
        fleet=Fleet(),
    )
    named = "ExponentialLR was stepped from 11 to 12" if is_passed else "lr of SGD, group 0"
    with trainer, pytest.raises(ConfigError, match=named):
        trainer.fit(clicks(), epochs=2)


def cyclic(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1)


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=99)


def nested(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    both = [one_cycle(optimizer), torch.optim.lr_scheduler.ConstantLR(optimizer)]
    return torch.optim.lr_scheduler.ChainedScheduler(both)


@pytest.mark.parametrize("make", [cyclic, one_cycle, nested])
def test_a_schedule_that_also_changes_the_momentum_is_refused(
    make: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler],
) -> None:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(ConfigError, match="pass cycle_momentum=False"):
        Trainer(model, BCE, optimizer, config=QUIET, schedule=make(optimizer), fleet=Fleet()).fit(
            clicks()
        )


def test_chained_schedulers_are_followed() -> None:
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kinds = torch.optim.lr_scheduler
    both = [kinds.ConstantLR(optimizer, 0.5, 3), kinds.ExponentialLR(optimizer, 0.9)]
    chained = kinds.ChainedScheduler(both)
    with Trainer(model, BCE, optimizer, config=QUIET, schedule=chained, fleet=Fleet()) as trainer:
        trainer.fit(clicks())
        rates = trainer.distributed.learning_rates()
    assert rates == pytest.approx({"ads": 0.1 * 0.9**12, "dense": 0.1 * 0.9**12})
