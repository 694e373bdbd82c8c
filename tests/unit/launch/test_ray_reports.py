"""`ray.train.report` in processes that replace each other, without a Ray cluster."""

from __future__ import annotations

import dataclasses
import threading
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from sparsefleet.launch.ray.coordinator import Presence, Reported

pytestmark = [
    pytest.mark.job,  # importing Ray takes seconds
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install sparsefleet[ray]"),
]

WHO = Presence(role="worker", index=1, node_id="n", host="127.0.0.1", pid=1)


class Coordinator:
    """Keeps the last state that a process has sent."""

    def __init__(self) -> None:
        self.known = WHO
        self.news = SimpleNamespace(remote=self._register)
        self.processes = SimpleNamespace(remote=dict)

    def _register(self, _: tuple[float, int], who: Presence) -> None:
        self.known = who


class Context:
    """Ray Train's context of a worker, whose barrier is released at once."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.rounds: list[tuple[int, int]] = []
        self.is_lost_in_upload = False
        self.report_call_index = 0
        default = SimpleNamespace(make_default_checkpoint_dir_name=lambda: "checkpoint_0")
        self.storage_context = default

    def get_synchronization_actor(self) -> None:
        """Return nothing: no other worker ends here."""

    def _sync_checkpoint_dir_name_across_ranks(self, name: str) -> str:
        return name

    def _wait_then_report(self, report: Any, report_call_index: int) -> None:
        assert report_call_index == self.report_call_index
        self.rounds.append(report.round)

    def report(self, label: str) -> None:
        self.report_call_index += 1
        assert self._sync_checkpoint_dir_name_across_ranks(label) == label
        if self.is_lost_in_upload:
            raise SystemExit
        self._wait_then_report(SimpleNamespace(), self.report_call_index)
        self.made.append(label)


class Process:
    """A process of a rank with the reports that previous ones made."""

    def __init__(self, coordinator: Coordinator, reports: Reported, start: int = 0) -> None:
        from sparsefleet.launch.ray.node import AddressBook
        from sparsefleet.launch.ray.reports import AlignedReports

        self.context: Any = Context()
        self.position = SimpleNamespace(place="", has_trained=False)
        who = dataclasses.replace(WHO, reports=reports, start=start)
        book = AddressBook(coordinator, None, who)  # type: ignore[arg-type]
        AlignedReports(self.context, coordinator, book, self.position)  # type: ignore[arg-type]

    def report(self, label: str, place: str = "") -> None:
        self.position.place = place
        self.context.report(label)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    import ray

    from sparsefleet.launch.ray import node, reports

    fake = SimpleNamespace(get=lambda answer: answer, exceptions=ray.exceptions)
    monkeypatch.setattr(reports, "ray", fake)
    monkeypatch.setattr(node, "ray", fake)
    return Coordinator()


def made_by_next(coordinator: Coordinator, *calls: tuple[str, str]) -> list[str]:
    """Return the reports that the next process makes before it trains."""
    process = Process(coordinator, coordinator.known.reports)
    for label, place in calls:
        process.report(label, place)
    return list(process.context.made)


def test_a_report_counts_once_all_workers_have_agreed_on_it(coordinator: Coordinator) -> None:
    """The others do not wait for it again, so the next process must not make it."""
    process = Process(coordinator, Reported())
    process.report("round 0")
    process.context.is_lost_in_upload = True
    with pytest.raises(SystemExit):
        process.report("round 1")
    assert coordinator.known.reports.count == 2
    calls = [(f"round {number}", "") for number in range(3)]
    assert made_by_next(coordinator, *calls) == ["round 2"]


def test_rounds_of_reports_increase_over_the_processes_of_worker_0(
    coordinator: Coordinator,
) -> None:
    rounds = []
    for start in (0, 1, 10_000):
        process = Process(coordinator, Reported(), start)
        process.report("a/name")
        process.report("another")
        rounds += process.context.rounds
    assert rounds == [(0, 1), (0, 2), (1, 1), (1, 2), (10_000, 1), (10_000, 2)]


def test_reports_of_different_rounds_are_never_paired(capfd: pytest.CaptureFixture[str]) -> None:
    from sparsefleet.launch.ray.report_rounds import report_queues

    queues = report_queues(3)

    def collect(worker: int, number: int) -> list[list[int]]:
        """Return what each queue holds once it has this report, as Ray Train appends it."""
        queues[worker].append(SimpleNamespace(round=(0, number)))
        return [[each.round[1] for each in queue] for queue in queues]

    assert collect(0, 5) == [[5], [], []]
    assert collect(1, 5) == [[5], [5], []]
    assert collect(1, 6) == [[5], [5, 6], []]
    # Worker 2 was replaced, and the process before it has made report 5.
    assert collect(2, 6) == [[], [6], [6]]
    assert collect(0, 6) == [[6], [6], [6]]
    assert capfd.readouterr().err.count("is dropped") == 2


def test_a_report_after_a_pass_without_data_left_is_made_once(coordinator: Coordinator) -> None:
    process = Process(coordinator, Reported())
    for epoch in (1, 2):
        process.report(f"epoch {epoch}", f"model/{epoch}/end")
    # Lost before or after the report of the last pass.
    assert made_by_next(coordinator, ("epoch 3", "model/3/end")) == ["epoch 3"]
    process.report("epoch 3", "model/3/end")
    again = [("epoch 3", "model/3/end"), ("more on it", "model/3/end"), ("fit", "")]
    assert made_by_next(coordinator, *again) == ["more on it", "fit"]


def test_a_report_after_a_fit_is_made_if_only_callbacks_had_reported(
    coordinator: Coordinator,
) -> None:
    process = Process(coordinator, Reported())
    for epoch in (1, 2):
        process.report(f"epoch {epoch}", f"model/{epoch}/end")
    assert made_by_next(coordinator, ("fit", "")) == ["fit"]
    assert coordinator.known.reports == Reported(count=3, outside=1, place="model/2/end", within=1)
    assert made_by_next(coordinator, ("fit", ""), ("next", "")) == ["next"]


def test_a_process_that_has_trained_repeats_nothing(coordinator: Coordinator) -> None:
    process = Process(coordinator, Reported(count=3, place="model/1/pass", within=3))
    process.position.has_trained = True
    process.report("step 400", "model/1/pass")
    assert process.context.made == ["step 400"]
    assert coordinator.known.reports.count == 4


def test_changes_of_two_threads_are_both_kept(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsefleet.launch.ray import node

    book = node.AddressBook(coordinator, None, WHO)  # type: ignore[arg-type]
    reading, other = threading.Event(), threading.Event()

    def replace(who: Presence, **fields: Any) -> Presence:
        if "has_own_loop" in fields:
            reading.set()
            other.wait(0.2)  # time for the other thread, if nothing keeps it out
        return dataclasses.replace(who, **fields)

    monkeypatch.setattr(node, "dataclasses", SimpleNamespace(replace=replace))
    thread = threading.Thread(target=lambda: book.change(has_own_loop=True))
    thread.start()
    reading.wait(10)
    book.tell(reports=Reported(count=1))
    other.set()
    thread.join()
    assert (book.who.has_own_loop, book.who.reports.count) == (True, 1)


def test_a_place_names_the_pass_in_and_after_which_a_callback_reports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    import sparsefleet
    from sparsefleet.engine.worker_metrics import WORKER
    from sparsefleet.launch.ray.reports import FitPosition

    monkeypatch.setattr(WORKER, "attach", WORKER.attach)
    position = FitPosition(WORKER)
    places = [position.place]

    class Places(sparsefleet.train.Callback):
        def on_epoch_end(self, trainer: object, epoch: object) -> None:
            del trainer, epoch
            places.append(position.place)

    def batches() -> Any:
        places.append(position.place)
        yield torch.ones(2, 1), torch.ones(2, 1)

    with sparsefleet.Trainer(
        torch.nn.Linear(1, 1),
        torch.nn.MSELoss(),
        sparsefleet.optim.SGD(lr=0.1),
        config=sparsefleet.TrainerConfig(quiet=True),
        callbacks=[Places()],
    ) as trainer:
        trainer.fit(batches)
        places.append(position.place)
    first, during, after, last = places
    assert (first, last) == ("", "")
    assert during.endswith("/pass")
    assert after == during.removesuffix("pass") + "end"
    assert position.has_trained
