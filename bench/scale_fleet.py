"""Fleets on this machine for bench/scale.py: processes forked from one that has loaded torch.

A fleet of 8 workers starts in a second that way, and in half a minute otherwise.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import multiprocessing
import os
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import torch
from torch import nn

import sparsefleet
from ctr_batches import DIM as CTR_DIM
from ctr_batches import NUM_IDS, make_batches
from ctr_ours import FleetModel as CtrModel
from measure import busy_s
from sparsefleet import optim
from sparsefleet.modes import AsyncConfig, GeoConfig
from sparsefleet.planning import JobShape
from sparsefleet.train import Trainer, TrainerConfig
from word2vec_ours import FleetModel as WordModel
from word2vec_pairs import DIM as WORD_DIM
from word2vec_pairs import NUM_WORDS, PairTurns

GEO_STEPS = 20
"""Geo's default interval grows over 10,000 steps; a short measurement needs a fixed one."""
WARM_S = 0.3
MEASURED_S = 0.5
TURNS = 3
QUIET = 0.15
"""Cores that others may use during a turn; a noisier one does not count if there are others."""
IDLE_LOOKS, IDLE_LOOK_S = 60, 0.1
GEO_TURN = 4
"""How much longer a turn in geo mode is, in which there are several exchanges."""
NUM_BATCHES = 20
READY_S = 120.0
MODES: dict[str, Any] = {
    "local": "local",
    "sync": "sync",
    "half_async": "half_async",
    "async": AsyncConfig(warmup_steps=0),
    "hybrid": "hybrid",
    "geo": GeoConfig(push_interval_steps=GEO_STEPS),
}
FIRST_CONTEXT = 10**9
"""Keys of contexts start here, those of their biases at twice that."""
FORKING = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Task:
    """A model and its batches."""

    name: str
    batch: int
    dense: int
    rows: int
    """Rows of all tables."""

    def model(self) -> nn.Module:
        return CtrModel() if self.name == "CTR-DNN" else WordModel(1.0, plain_operators=False)

    def loss(self) -> Any:
        return nn.functional.cross_entropy if self.name == "CTR-DNN" else None

    def batches(self, rank: int) -> list[Any]:
        if self.name == "CTR-DNN":
            return make_batches(NUM_BATCHES, self.batch, seed=rank)
        return PairTurns(argparse.Namespace(rank=rank)).turn(self.batch, NUM_BATCHES)

    def ids(self, batch: Any) -> np.ndarray:
        """Return the keys that a batch looks up; keys of different tables are distinct."""
        if self.name == "CTR-DNN":
            return batch[1].numpy().reshape(-1)
        words, contexts = (part.numpy().reshape(-1) for part in batch)
        return np.concatenate([words, contexts + FIRST_CONTEXT, contexts + 2 * FIRST_CONTEXT])

    def floats(self, ids: np.ndarray) -> float:
        """Return the floats of the rows of these keys, on average."""
        if self.name == "CTR-DNN":
            return CTR_DIM
        return float(np.where(ids < 2 * FIRST_CONTEXT, WORD_DIM, 1).mean())

    def job(self, compute_s: float, variation: float) -> JobShape:
        """Return what the model of the fleet sees of it."""
        ids = [self.ids(batch) for batch in self.batches(0)[:GEO_STEPS]]
        keys = float(np.mean([len(np.unique(one)) for one in ids]))
        together = len(np.unique(np.concatenate(ids)))
        return JobShape(
            batch=self.batch,
            ids=len(ids[0]),
            keys=keys,
            row_floats=self.floats(np.unique(ids[0])),
            dense=self.dense,
            compute_s=compute_s,
            growth=float(np.log(together / keys) / np.log(len(ids))),
            rows=self.rows,
            merges_freely=True,
            variation=variation,
            exchange_steps=GEO_STEPS,
        )


CTR = Task("CTR-DNN", 500, 432_402, NUM_IDS)
WORDS = Task("word2vec", 500, 0, 3 * NUM_WORDS)
TASKS = (CTR, WORDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """A fleet, or several equal ones side by side."""

    mode: str
    workers: int = 1
    """Workers of each fleet."""
    servers: int = 1
    fleets: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """A fleet at work, during one turn or on average."""

    mode: str
    workers: int
    servers: int
    examples_per_s: float
    worker_cpu_s: float
    """CPU time of one step, in the workers."""
    server_cpu_s: float
    """CPU time of one step, in the servers."""
    bytes_per_example: float
    others: float
    """Cores that other processes used meanwhile."""
    steps: int
    """Steps of all workers within the measured time."""


def cpu_s(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)


def measure(task: Task, *shapes: Shape, turns: int = TURNS) -> list[Measured]:
    """Run fleets that train in turns, so that whatever slows down the machine for more than a
    second slows down all of them.
    """
    with contextlib.ExitStack() as stack:
        fleets: list[Fleet] = []
        for shape in shapes:
            fleets.append(Fleet(task, shape))
            stack.callback(fleets[-1].close)
        for fleet in fleets:
            fleet.wait_until_ready()
        taken: list[list[Measured]] = []
        for _ in range(turns):
            wait_until_idle()
            taken.append([fleet.take_turn() for fleet in fleets])
    quiet = [each for each in taken if max(one.others for one in each) <= QUIET]
    return [medians(one) for one in zip(*(quiet or taken), strict=True)]


def wait_until_idle() -> None:
    """Wait until nothing else runs on the machine, but not forever."""
    for _ in range(IDLE_LOOKS):
        busy = busy_s()
        time.sleep(IDLE_LOOK_S)
        if busy_s() - busy <= QUIET * IDLE_LOOK_S:
            return


def medians(turns: Sequence[Measured]) -> Measured:
    """Return what was measured in several turns as one: medians, and all steps."""
    changes = {
        field.name: statistics.median(getattr(turn, field.name) for turn in turns)
        for field in dataclasses.fields(Measured)
        if field.type == "float"
    }
    return dataclasses.replace(turns[0], **changes, steps=sum(turn.steps for turn in turns))


class Fleet:
    """The processes of a fleet, or of several, which train when it is their turn."""

    def __init__(self, task: Task, shape: Shape) -> None:
        self._task, self._shape = task, shape
        self._servers: list[BaseProcess] = []
        self._workers: list[BaseProcess] = []
        self._pipes: list[Connection] = []
        for _ in range(shape.fleets):
            key, endpoints = secrets.token_hex(32), []
            for index in range(shape.servers):
                pipe, one = _fork(_serve, index, shape.servers, key)
                self._servers.append(one)
                endpoints.append(_answer(pipe))
            for rank in range(shape.workers):
                pipe, one = _fork(_work, task, shape.mode, rank, shape.workers, endpoints, key)
                self._workers.append(one)
                self._pipes.append(pipe)

    def wait_until_ready(self) -> None:
        for pipe in self._pipes:
            _answer(pipe)

    def take_turn(self) -> Measured:
        """Train for a while and return what was measured after a warm-up."""
        measured_s = MEASURED_S * (GEO_TURN if self._shape.mode == "geo" else 1)
        begin = time.monotonic() + WARM_S
        end = begin + measured_s
        for pipe in self._pipes:
            pipe.send((begin, end))
        pids = [one.pid or 0 for one in self._servers]
        time.sleep(max(0.0, begin - time.monotonic()))
        served, busy = sum(map(cpu_s, pids)), busy_s()
        time.sleep(max(0.0, end - time.monotonic()))
        served, busy = sum(map(cpu_s, pids)) - served, busy_s() - busy
        answers = [_answer(pipe) for pipe in self._pipes]
        steps = max(1, sum(answer["steps"] for answer in answers))
        worked = sum(answer["cpu_s"] for answer in answers)
        seconds = sum(answer["seconds"] for answer in answers) / len(answers)
        shape, batch = self._shape, self._task.batch
        all_examples = answers[0]["all_steps"] * shape.workers * batch
        return Measured(
            mode=shape.mode,
            workers=shape.workers,
            servers=shape.servers,
            examples_per_s=steps * batch / seconds,
            worker_cpu_s=worked / steps,
            server_cpu_s=served / (steps * measured_s / seconds),
            bytes_per_example=answers[0]["bytes"] / all_examples,
            others=max(0.0, (busy - served - worked) / measured_s),
            steps=steps,
        )

    def close(self) -> None:
        """End all processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):  # it has failed
                pipe.send(None)
        for one in self._workers:
            one.join(READY_S)
        for one in self._servers:
            one.terminate()
            one.join(READY_S)


def _fork(work: Callable[..., None], *arguments: Any) -> tuple[Connection, BaseProcess]:
    ours, theirs = FORKING.Pipe()
    one = FORKING.Process(target=work, args=(theirs, *arguments), daemon=True)
    one.start()
    return ours, one


def _answer(pipe: Connection) -> Any:
    if not pipe.poll(READY_S):
        raise TimeoutError("a process of the fleet did not answer")
    return pipe.recv()


def _end_with_parent() -> None:
    """End this process when the one that forked it is gone, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve(pipe: Connection, index: int, count: int, key: str) -> None:
    from sparsefleet.server import ServerConfig, run_server

    _end_with_parent()
    read, write = os.pipe()
    os.dup2(write, 1)  # it announces its port there
    os.environ["SPARSEFLEET_JOB_KEY"] = key

    def announce() -> None:
        text = b""
        while b"listening on " not in text or b"\n" not in text.split(b"listening on ")[1]:
            text += os.read(read, 4096)
        pipe.send(text.split(b"listening on ")[1].split()[0].decode())

    threading.Thread(target=announce, daemon=True).start()
    run_server(ServerConfig(endpoint="127.0.0.1:0", index=index, num_servers=count))


def _work(
    pipe: Connection,
    task: Task,
    mode: str,
    rank: int,
    workers: int,
    endpoints: Iterable[str],
    key: str,
) -> None:
    _end_with_parent()
    if endpoints:
        os.environ |= {
            "SPARSEFLEET_JOB_KEY": key,
            "SPARSEFLEET_ROLE": "worker",
            "SPARSEFLEET_INDEX": str(rank),
            "SPARSEFLEET_SERVERS": ",".join(endpoints),
            "SPARSEFLEET_WORKERS": str(workers),
        }
    torch.manual_seed(0)
    torch.set_num_threads(1)
    batches = task.batches(rank)
    with Trainer(
        task.model(),
        task.loss(),
        optim.SGD(lr=0.01),
        mode=MODES[mode],
        config=TrainerConfig(quiet=True),
    ) as trainer:
        trainer.fit(batches)
        pipe.send("ready")
        all_steps = len(batches)
        while (turn := pipe.recv()) is not None:
            counts = _Counts()
            trainer.fit(functools.partial(counts.until, batches, *turn))
            all_steps += counts.taken
            moved = 0.0
            store = trainer.distributed.store
            if isinstance(store, sparsefleet.RemoteStore):
                stats = store.stats()
                moved = sum(one["server.bytes_in"] + one["server.bytes_out"] for one in stats)
            pipe.send(
                {
                    "steps": counts.last - counts.first,
                    "seconds": counts.moments[1] - counts.moments[0],
                    "cpu_s": counts.cpu_s[1] - counts.cpu_s[0],
                    "bytes": moved,
                    "all_steps": all_steps,
                }
            )


class _Counts:
    """Counts the batches that are taken within a time."""

    def __init__(self) -> None:
        self.taken = self.first = self.last = 0
        self.moments = [0.0, 0.0]
        self.cpu_s = [0.0, 0.0]

    def until(self, batches: list[Any], begin: float, end: float) -> Iterator[Any]:
        while (now := time.monotonic()) < end:
            if not self.moments[0] and now >= begin:
                self.first, self.moments[0] = self.taken, now
                self.cpu_s[0] = time.process_time()
            yield batches[self.taken % len(batches)]
            self.taken += 1
        if not self.moments[0]:  # a single step was longer than the whole measurement
            self.first, self.moments[0], self.cpu_s[0] = self.taken, begin, time.process_time()
        self.last, self.moments[1], self.cpu_s[1] = self.taken, now, time.process_time()
