"""Breaks down where the time of a training goes, from other measurements."""

from __future__ import annotations

import re

from side_medians import SideMedians

MIB = 1 << 20


def cores_of(machine: str) -> int:
    """Return the number of cores in a line of `measure.machine`; 1 if it is missing."""
    found = re.search(r"(\d+) cores", machine)
    return int(found[1]) if found else 1


def cpu_account(
    cores: int,
    rate: float,
    cpu_us: float,
    products_us: float,
    *,
    server_us: float = 0.0,
    unit: str = "example",
) -> str:
    """Break down the time of one example over all cores: products, other work, and idle time.

    rate: examples per second; cpu_us: CPU time of all processes, of which server_us is the
    servers'.
    """
    total_us = cores * 1e6 / rate
    parts = {
        "matrix products": min(products_us, cpu_us - server_us),
        "what else workers do": max(0.0, cpu_us - server_us - products_us),
        "servers": server_us,
        "idle": max(0.0, total_us - cpu_us),
    }
    told = ", ".join(
        f"{name} {us:.1f} ({us / total_us:.0%})" for name, us in parts.items() if us > 0
    )
    return f"{total_us:.1f} us of {cores} cores for one {unit}: {told}"


def ctr_account(ctr: SideMedians, group: str, side: str, batch: int) -> str:
    """Break down one side of CTR-DNN; empty if it, or the products, were not measured."""
    rate, cpu_us = ctr.rate(group, side, batch), ctr.cpu_us(group, side, batch)
    products_us = ctr.floor_cpu_us(group, batch)
    if rate is None or cpu_us is None or products_us is None:
        return ""
    server_us = ctr.server_cpu_us(group, side, batch) or 0.0
    cores = cores_of(ctr.machine(group))
    return cpu_account(cores, rate, cpu_us, products_us, server_us=server_us)


def memory_account(ctr: SideMedians, group: str, side: str, others: dict[str, str]) -> str:
    """MiB of its largest worker, next to other sides of the group: name -> label."""
    found = {side: "", **others}
    told = [
        f"{held / MIB:,.0f} MiB{title and f' {title}'}"
        for name, title in found.items()
        if (held := ctr.worker_bytes(group, name)) is not None
    ]
    return "; ".join(told)
