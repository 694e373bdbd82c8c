"""How the speed of CTR-DNN changes with batch size, servers, workers and network delay."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ctr_names import OURS, PRODUCTS, TORCH
from ctr_rounds import RoundsConfig, run_rounds, section_examples
from ctr_start import SideSpec, Sources, fleet, start
from growth_figure import Figure
from measure import console

MODES = ("sync", "async")
RATE = "examples/s"
CPU = "CPU us an example"


def config_of(quick: bool, repeats: int, batches: Iterable[int] = (1000,)) -> RoundsConfig:
    if quick:
        return RoundsConfig(repeats=1, section_s=0.2, warm_examples=2_000, batches=tuple(batches))
    return RoundsConfig(repeats=repeats, section_s=0.8, warm_examples=4_000, batches=tuple(batches))


def measure_batch(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Examples per second by batch size."""
    batches = (32, 1024) if quick else (32, 128, 512, 2048, 8192)
    figure = Figure("batch", "Batch size", "examples of a batch", RATE, is_x_log=True)
    figure.about = "two cores for each line"
    specs = {
        "matrix products alone": SideSpec(engine=PRODUCTS, workers=2),
        "plain torch, 2 threads": SideSpec(engine=TORCH, threads=2),
        "local, 2 threads": SideSpec(engine=OURS, threads=2),
        **{f"{mode}, 2x2": fleet(mode) for mode in (*MODES, "geo")},
    }
    if quick:
        specs = {name: specs[name] for name in ("matrix products alone", "async, 2x2")}
    found = _rounds(specs.values(), config_of(quick, repeats, batches))
    for name, spec in specs.items():
        _add_error(figure, name, found[spec.name])
        for batch, sections in found[spec.name]["sections"].items():
            figure.add(name, int(batch), [one["examples_per_s"] for one in sections])
    return [figure.as_json()]


def measure_servers(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Two workers and an increasing number of servers on the same machine."""
    return _by_count("servers", quick, repeats)


def measure_workers(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """Two servers and an increasing number of workers on the same machine."""
    return _by_count("workers", quick, repeats)


def _by_count(what: str, quick: bool, repeats: int) -> list[dict[str, Any]]:
    other = "workers" if what == "servers" else "servers"
    rate = Figure(what, what.capitalize(), what, RATE)
    cpu = Figure(f"{what}_cpu", f"{what.capitalize()}: CPU time", what, CPU)
    rate.about = cpu.about = f"2 {other}, batch 1000, all on the same cores"
    counts = (1,) if quick else (1, 2, 3, 4)
    modes = MODES[-1:] if quick else MODES
    specs = {(mode, count): fleet(mode, **{what: count}) for mode in modes for count in counts}
    found = _rounds(specs.values(), config_of(quick, repeats))
    for (mode, count), spec in specs.items():
        of_side = found[spec.name]
        _add_error(rate, f"{mode} {count}", of_side)
        for sections in of_side["sections"].values():
            rate.add(mode, count, [one["examples_per_s"] for one in sections])
            cpu.add(mode, count, [one["cpu_us_per_example"] for one in sections])
    return [rate.as_json(), cpu.as_json()]


def measure_delay(quick: bool, repeats: int) -> list[dict[str, Any]]:
    """All traffic between two workers and two servers is delayed, each way."""
    modes = ("sync",) if quick else ("sync", "half_async", "async", "geo")
    delays_ms = (0, 5) if quick else (0, 1, 5)
    figure = Figure("delay", "Network delay", "added delay each way, ms", RATE)
    figure.about = "2 servers x 2 workers, batch 1000, through a proxy, without delay too"
    config = config_of(quick, repeats)
    taken: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        sources, sides, sizes = Sources(folder=Path(folder)), {}, {}
        for mode in modes:
            try:
                sides[mode] = start(fleet(mode, is_proxied=True), sources)
                stack.callback(sides[mode].side.close)
                for delay_ms in delays_ms:
                    sides[mode].delay(delay_ms / 1000)
                    sizes[mode, delay_ms] = section_examples(sides[mode], 1000, config)
            except (OSError, RuntimeError) as error:
                figure.errors[mode] = str(error)
                sides.pop(mode, None)
        for number in range(config.repeats):
            for (mode, delay_ms), examples in sizes.items():
                if mode not in sides:
                    continue
                try:
                    sides[mode].delay(delay_ms / 1000)
                    section = sides[mode].side.run(1000, examples)
                    taken.setdefault((mode, delay_ms), []).append(section.examples_per_s)
                except (OSError, RuntimeError) as error:
                    figure.errors[mode] = str(error)
                    del sides[mode]
            console.print(f"  round {number + 1} of {config.repeats}", highlight=False)
    for (mode, delay_ms), rates in taken.items():
        figure.add(mode, delay_ms, rates)
    return [figure.as_json()]


def _rounds(specs: Iterable[SideSpec], config: RoundsConfig) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        return run_rounds(list(specs), Sources(folder=Path(folder)), config)


def _add_error(figure: Figure, series: str, of_side: dict[str, Any]) -> None:
    if of_side["error"]:
        figure.errors[series] = of_side["error"]
