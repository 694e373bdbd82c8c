from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.unit.train.click_model import Clicks, clicks, trainer_of

from sparsefleet.engine.clock import StepClock, TimeShares, advise
from sparsefleet.errors import ConfigError
from sparsefleet.train import TrainerConfig
from sparsefleet.train.history import Epoch, History, summary_lines, summary_table
from sparsefleet.train.progress import (
    LiveDisplay,
    PlainDisplay,
    QuietDisplay,
    Snapshot,
    make_display,
)

SNAPSHOT = Snapshot(
    epoch=2,
    epochs=3,
    batches=50,
    num_batches=200,
    examples=50_000,
    examples_per_s=1234.5,
    loss=0.25,
    metrics={"auc": 0.75, "accuracy": 0.5},
    rows=1_000_000,
    pull_ms=0.42,
    push_ms=1.25,
    staleness=1.5,
    skipped=3,
)


def test_line_has_every_figure() -> None:
    assert str(SNAPSHOT) == (
        "epoch 2/3  25%  1,234 examples/s  loss 0.2500  AUC 0.7500  accuracy 0.5000  "
        "1,000,000 rows  pull 0.4 ms  push 1.2 ms  staleness 1.5  3 skipped"
    )


def test_line_counts_batches_where_their_number_is_unknown() -> None:
    line = str(Snapshot(epoch=1, epochs=1, batches=1234, loss=0.5))
    assert line == "epoch 1/1  batch 1,234  0 examples/s  loss 0.5000"


def test_plain_display_prints_lines(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay(1.0)
    display.show(SNAPSHOT)
    display.note("done")
    display.close()
    assert capsys.readouterr().out == f"{SNAPSHOT}\ndone\n"


def test_quiet_display_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    display = make_display(quiet=True, log_interval_s=1.0)
    assert isinstance(display, QuietDisplay)
    display.show(SNAPSHOT)
    display.end_epoch(SNAPSHOT)
    display.note("done")
    display.table(lambda: "table")
    display.close()
    assert capsys.readouterr().out == ""


def test_display_is_plain_without_a_terminal() -> None:
    assert isinstance(make_display(quiet=False, log_interval_s=1.0), PlainDisplay)


def test_live_display_shows_numbers_and_leaves_finished_epochs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes the pipe for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    display = LiveDisplay()
    display.show(SNAPSHOT)
    display.end_epoch(SNAPSHOT)
    display.close()
    display.close()
    shown = capsys.readouterr().out
    assert "1,234 examples/s" in shown
    assert str(SNAPSHOT) in shown


def clock_of(**seconds: float) -> StepClock:
    clock = StepClock()
    for name, value in seconds.items():
        setattr(clock, name, value)
    return clock


def test_waiting_is_taken_from_the_handing_over() -> None:
    clock = clock_of(data_s=1, pull_s=2, compute_s=3, hand_over_s=4, elapsed_s=10.5)
    shares = TimeShares.of(clock, wait_s=1.5)
    assert shares == TimeShares(data=1, pull=2, compute=3, push=2.5, wait=1.5, other=0.5)
    assert shares.total == 10.5
    assert sum(shares.shares().values()) == pytest.approx(1.0)
    assert TimeShares.of(clock, wait_s=99).wait == 4


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        (TimeShares(data=6, compute=4), "60% data: reading batches"),
        (TimeShares(pull=4, compute=6), "40% pull: fetching rows"),
        (TimeShares(push=4, compute=6), "40% push: pushing gradients"),
        (TimeShares(wait=4, compute=6), "40% wait: threads wait"),
        (TimeShares(other=7, compute=3), "70% other: the Python code around"),
        (TimeShares(data=1, pull=1, compute=8), "80% compute: computing"),
        (TimeShares(data=2.3, pull=2.4, wait=2.3, compute=3), "30% compute: computing"),
        (TimeShares(data=1.1, pull=2.1, push=2.0, compute=4.8), "48% compute: computing"),
        (TimeShares(data=0.1), "nothing was trained"),
    ],
)
def test_bottleneck_is_named_with_its_share(shares: TimeShares, wanted: str) -> None:
    assert advise(shares).startswith(wanted)


def test_summary_tells_rate_skipped_batches_and_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    epoch = Epoch(number=1, examples=1000, steps=10, skipped=2, seconds=2.0, loss=0.5, metrics={})
    shares = TimeShares(data=0.5, compute=1.5)
    history = History(epochs=[epoch], time_shares=shares, bottleneck=advise(shares))
    lines = summary_lines(history)
    assert lines[0] == "trained 1,000 examples in 2.0 s (500 per second)"
    assert lines[1] == "2 batches were skipped because their loss was not finite"
    assert lines[2].startswith("bottleneck: 75% compute")
    PlainDisplay(1.0).table(lambda: summary_table(history))
    shown = capsys.readouterr().out
    for part in ("data", "25.0%", "pull", "compute", "75.0%", "push", "wait"):
        assert part in shown


def test_figures_can_be_read_by_tensorboard(tmp_path: Path) -> None:
    config = TrainerConfig(quiet=True, tensorboard=tmp_path / "runs")
    with trainer_of(Clicks(), config=config) as trainer:
        history = trainer.fit(clicks(), epochs=2, validation=clicks(seed=1))
    events = EventAccumulator(str(tmp_path / "runs"))
    events.Reload()
    written = set(events.Tags()["scalars"])
    assert {"train/loss", "train/auc", "speed/examples_per_s", "validation/auc"} <= written
    assert [event.step for event in events.Scalars("fleet/rows")] == [384, 768]
    found = [event.value for event in events.Scalars("validation/loss")]
    wanted = [epoch.validation["loss"] for epoch in history.epochs if epoch.validation]
    assert found == pytest.approx(wanted, rel=1e-6)


def test_missing_package_is_reported_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with trainer_of(Clicks(), config=TrainerConfig(quiet=True, tensorboard="runs")) as trainer:
        with pytest.raises(ConfigError, match=r"'runs'.*pip install sparsefleet\[tensorboard\]"):
            trainer.fit(clicks())
