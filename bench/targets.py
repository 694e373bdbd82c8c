"""The targets, next to what was measured."""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass
from typing import Any

from collective_names import MODELS as COLLECTIVE_MODELS
from collective_names import WANTED as COLLECTIVE_WANTED
from ctr_names import OURS, PADDLE, TORCH
from day_record import DayRecord
from side_medians import BATCHES, SideMedians, ratio
from time_account import cores_of, cpu_account, ctr_account, memory_account

DDP = f"{TORCH} DDP 2"


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target; without a number, the measurement is only reported."""

    found: float | None
    target: float | None = None
    is_share: bool = False
    """Shown in percent, not as a factor."""
    is_upper: bool = False
    """Met if the measurement is not above the target."""

    @property
    def is_met(self) -> bool | None:
        """Whether it was met; None if it was not measured, or has no target."""
        if self.found is None or self.target is None:
            return None
        return self.found <= self.target if self.is_upper else self.found >= self.target

    def text(self) -> str:
        relation = "<=" if self.is_upper else ">="
        wanted = "" if self.target is None else f" ({relation} {self._number(self.target, True)})"
        if self.found is None:
            return f"not measured{wanted}" if wanted else ""
        verdict = {True: " **met**", False: " **missed**", None: ""}[self.is_met]
        return f"{self._number(self.found, False)}{wanted}{verdict}"

    def _number(self, value: float, is_target: bool) -> str:
        if self.is_share:
            return f"{value:.0%}"
        return f"{value:g}x" if is_target else f"{value:.2f}x"


NOTHING = Verdict(None)


@dataclass(frozen=True, slots=True)
class TargetRow:
    """One workload against each of the engines it is compared with."""

    work: str
    paddle: Verdict = NOTHING
    torch: Verdict = NOTHING
    floor: Verdict = NOTHING
    account: str = ""
    """Where its time or memory goes, to explain a missed target."""

    @property
    def verdicts(self) -> tuple[Verdict, Verdict, Verdict]:
        return self.paddle, self.torch, self.floor

    @property
    def is_missed(self) -> bool:
        """Whether any of its targets was missed."""
        return any(verdict.is_met is False for verdict in self.verdicts)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Targets of one way to train CTR-DNN; pairs are for batches of 1000 and 100."""

    group: str
    how: str
    title: str
    torch_sides: tuple[str, ...]
    """Settings of torch, of which the fastest at a batch size counts."""
    paddle: tuple[float, float]
    torch: tuple[float, float]
    ceiling: tuple[float, float]
    """The share of torch's own dense step in as many single-threaded processes."""
    processes: int = 2

    def torch_side(self, ctr: SideMedians, batch: int) -> str:
        """Return the fastest of torch's settings."""
        return max(self.torch_sides, key=lambda side: ctr.rate(self.group, side, batch) or 0.0)


ON_SERVERS = ((3.5, 4.0), (1.4, 2.2), (0.85, 0.60))
WANTED = (
    Wanted(
        "local", "local 1", "local, 1 thread", (f"{TORCH} local 1",),
        (1.5, 1.35), (1.1, 1.1), (0.95, 0.85), processes=1,
    ),
    Wanted(
        "local", "local 2", "local, 2 threads", (f"{TORCH} local 1", f"{TORCH} local 2"),
        (1.5, 1.35), (1.05, 1.3), (0.95, 0.85),
    ),
    Wanted("rounds", "sync 2x2", "sync", (DDP,), *ON_SERVERS),
    Wanted("rounds", "half_async 2x2", "half_async", (DDP,), *ON_SERVERS),
    Wanted("rounds", "hybrid 2x2", "hybrid", (DDP,), *ON_SERVERS),
    Wanted("background", "async 2x2", "async", (DDP,), *ON_SERVERS),
    Wanted("background", "geo 2x2", "geo", (DDP,), (3.0, 2.0), (1.4, 2.2), (0.92, 0.80)),
)  # fmt: skip
OVER_TLS = {"sync 2x2": "rounds", "async 2x2": "background"}
WIRES = {"": "tls", " with 16-bit numbers": "tls, bf16"}
OF_SHARED_MEMORY = (0.92, 0.75)
SKIP_GRAM = {
    "sparsefleet": ("2 threads", 1.0),
    "sparsefleet geo 2x2, exchange every 50,000 words": ("geo 2x2", 0.9),
    "sparsefleet async 2x2, every 5,000": ("async 2x2, an exchange every 5,000 words", 0.5),
}
COLLECTIVE_TITLES = {
    "fused": "fused",
    "fused-4": "fused, 4 ranks",
    "local-4": "LocalSGD with 4 steps (in the middle: over fused)",
}
WORD2VEC = {"local 2": 1.5, "async 2x2": 4.0, "geo 2x2": 2.0}
READER_THREADS = {
    "1 thread": ("torch, in process",),
    "2 threads": ("torch, in process", "torch, 2 workers"),
}
"""And the DataLoaders, of which the fastest counts."""
READER_PADDLE, READER_TORCH = 3.0, 8.0
CPU_PADDLE, CPU_TORCH = 0.5, 1.0
MEMORY_PADDLE, MEMORY_TORCH = 0.5, 1.0


def target_rows(record: DayRecord) -> list[TargetRow]:
    """Return all targets, measured or not."""
    ctr = SideMedians(record)
    return [
        *_rates(ctr),
        *_over_tls(ctr),
        *_word2vec(record),
        *_estimator(record.figures("skip-gram")),
        *_collective(record.figures("collective")),
        *_reading(record.figures("reader")),
        *_cpu(ctr),
        *_memory(ctr),
    ]


def _rates(ctr: SideMedians) -> list[TargetRow]:
    rows = []
    for wanted in WANTED:
        for index, batch in enumerate(BATCHES):
            ours = ctr.rate(wanted.group, f"{OURS} {wanted.how}", batch)
            paddle = ctr.rate(wanted.group, f"{PADDLE} {wanted.how}", batch)
            torch = ctr.rate(wanted.group, wanted.torch_side(ctr, batch), batch)
            ceiling = ctr.ceiling(wanted.group, batch, wanted.processes)
            rows.append(
                TargetRow(
                    f"CTR-DNN {wanted.title}, batch {batch}: examples/s (on the right: of torch's "
                    "dense step)",
                    Verdict(ratio(ours, paddle), wanted.paddle[index]),
                    Verdict(ratio(ours, torch), wanted.torch[index]),
                    Verdict(ratio(ours, ceiling), wanted.ceiling[index], is_share=True),
                    ctr_account(ctr, wanted.group, f"{OURS} {wanted.how}", batch),
                )
            )
    return rows


def _over_tls(ctr: SideMedians) -> list[TargetRow]:
    rows = []
    for (how, group), (numbers, wire) in itertools.product(OVER_TLS.items(), WIRES.items()):
        for index, batch in enumerate(BATCHES):
            side = f"{OURS} {how}, {wire}"
            ours = ctr.rate(group, side, batch)
            in_memory = ctr.rate(group, f"{OURS} {how}", batch)
            rows.append(
                TargetRow(
                    f"CTR-DNN {how.split()[0]} over TLS{numbers}, batch {batch}: examples/s (on "
                    "the right: of shared memory's)",
                    torch=Verdict(ratio(ours, ctr.rate(group, DDP, batch)), 1.0),
                    floor=Verdict(ratio(ours, in_memory), OF_SHARED_MEMORY[index], is_share=True),
                    account=ctr_account(ctr, group, side, batch),
                )
            )
    return rows


def _estimator(figures: dict[str, Any] | None) -> list[TargetRow]:
    """Skip-gram as an estimator; that its scores equal gensim's is for the reader to see."""
    rates = (figures or {}).get("rates", {})
    gensim = rates.get("gensim", [None])[0]
    return [
        TargetRow(
            f"skip-gram, {how}: words/s (in the middle: over gensim)",
            torch=Verdict(ratio(rates.get(side, [None])[0], gensim), target),
        )
        for side, (how, target) in SKIP_GRAM.items()
    ]


def _word2vec(record: DayRecord) -> list[TargetRow]:
    by_batch = (record.figures("word2vec") or {}).get("by_batch", {})
    cores = cores_of(record.parts["word2vec"]["machine"]) if by_batch else 1
    return [
        row for batch in BATCHES for row in _skip_gram(batch, by_batch.get(str(batch), {}), cores)
    ]


def _skip_gram(batch: int, sides: dict[str, Any], cores: int) -> list[TargetRow]:

    def median(name: str, what: str) -> float | None:
        taken = sides.get(name, {}).get(what)
        return statistics.median(taken) if taken else None

    def rate(name: str) -> float | None:
        return median(name, "rate")

    def account(name: str) -> str:
        cpu_us, products_us = median(name, "cpu_us"), median("products 2x1", "cpu_us")
        found = rate(name)
        if found is None or cpu_us is None or products_us is None:
            return ""
        return cpu_account(cores, found, cpu_us, products_us, unit="pair")

    gensims = [rate(name) for name in sides if name.startswith("gensim")]
    gensim = max((found for found in gensims if found), default=None)
    floors = [rate(name) for name in sides if name.startswith("products")]
    floor = max((found for found in floors if found), default=None)
    return [
        TargetRow(
            f"word2vec {how}, batch {batch}: pairs/s (in the middle: over gensim)",
            Verdict(ratio(rate(f"{OURS} {how}"), rate(f"{PADDLE} {how}")), target),
            Verdict(ratio(rate(f"{OURS} {how}"), gensim)),
            Verdict(ratio(rate(f"{OURS} {how}"), floor), is_share=True),
            account(f"{OURS} {how}"),
        )
        for how, target in WORD2VEC.items()
    ]


def _collective(figures: dict[str, Any] | None) -> list[TargetRow]:
    ratios = (figures or {}).get("ratios", {})
    return [
        TargetRow(
            f"collective, {title}, {delay_ms} ms delay, {COLLECTIVE_TITLES[wanted.side]}: steps/s",
            torch=Verdict(ratios.get(wanted.key(model, delay_ms)), wanted.target),
        )
        for wanted in COLLECTIVE_WANTED
        for model, title in COLLECTIVE_MODELS.items()
        for delay_ms in wanted.delays_ms
    ]


def _reading(figures: dict[str, Any] | None) -> list[TargetRow]:
    passes = (figures or {}).get("multi_slot", {})

    def rate(name: str) -> float | None:
        return statistics.median(one[0] for one in passes[name]) if name in passes else None

    rows = []
    for threads, loaders in READER_THREADS.items():
        ours, paddle = rate(f"ours, {threads}"), rate(f"Paddle 1.8.5, {threads}")
        found = [rate(name) for name in loaders]
        loader = max((one for one in found if one is not None), default=None)
        rows.append(
            TargetRow(
                f"MultiSlot reading, {threads}: records/s",
                Verdict(ratio(ours, paddle), READER_PADDLE),
                Verdict(ratio(ours, loader), READER_TORCH),
            )
        )
    return rows


def _cpu(ctr: SideMedians) -> list[TargetRow]:
    rows = []
    for wanted in WANTED:
        for batch in BATCHES:
            ours = ctr.cpu_us(wanted.group, f"{OURS} {wanted.how}", batch)
            paddle = ctr.cpu_us(wanted.group, f"{PADDLE} {wanted.how}", batch)
            torch = ctr.cpu_us(wanted.group, wanted.torch_side(ctr, batch), batch)
            rows.append(
                TargetRow(
                    f"CTR-DNN {wanted.title}, batch {batch}: CPU time per example",
                    Verdict(ratio(ours, paddle), CPU_PADDLE, is_upper=True),
                    Verdict(ratio(ours, torch), CPU_TORCH, is_upper=True),
                    account=ctr_account(ctr, wanted.group, f"{OURS} {wanted.how}", batch),
                )
            )
    return rows


def _memory(ctr: SideMedians) -> list[TargetRow]:
    torch = ctr.worker_bytes("local", f"{TORCH} local 2")
    rows = []
    for wanted in WANTED:
        ours = ctr.worker_bytes(wanted.group, f"{OURS} {wanted.how}")
        paddle = ctr.worker_bytes(wanted.group, f"{PADDLE} {wanted.how}")
        rows.append(
            TargetRow(
                f"CTR-DNN {wanted.title}: memory of a worker (in the middle: over plain torch's)",
                Verdict(ratio(ours, paddle), MEMORY_PADDLE, is_upper=True),
                Verdict(ratio(ours, torch), MEMORY_TORCH, is_upper=True),
                account=memory_account(
                    ctr,
                    wanted.group,
                    f"{OURS} {wanted.how}",
                    {
                        f"{OURS} local 1": "with one thread",
                        f"{PADDLE} {wanted.how}": "PaddlePaddle",
                        f"{TORCH} local 2": "plain torch",
                    },
                ),
            )
        )
    return rows
