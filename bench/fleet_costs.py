"""What one operation costs as the fleet grows: 1 to 500 workers, 1 to 16 servers.

    python bench/fleet_costs.py [--parts workers,servers] [--quick] [--repeats 3] [--json FILE]

The workers are simulated: each is a client with its own session and connections, many of them in
this process. Servers have processes of their own. A figure is the processor time of all servers,
all their threads, for one operation of one worker: unlike elapsed time it depends little on what
else this machine runs, and it is what limits a fleet.

    push        20,000 rows, while all workers watch the changes of the table (GEO)
    take        the changed rows of one such push
    clock       a report that waits until all workers have reported (also: a meeting)
    barrier     of all workers
    round       200 rows of gradients and 200 rows back, in a round of all workers (sync)
    gather      100 bytes of each worker to all workers; also per kB that a worker receives
    idle        a second of a connected worker that does nothing: heartbeats

Part `workers` has one server and must not grow with the number of workers. Each figure is over 20
turns of all workers at least: the first ones find neither sessions nor sockets in the caches. Part
`servers` has 8 workers, in rounds 2,000 rows each. There an operation on rows asks every server. So
each is repeated with 20 rows per server, which shows what its requests cost; what further rows add,
scaled to all of them, must not grow. The last lines have what a request and an idle worker cost one
server.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from measure import argument_parser, console, judge, machine, note, report, write_json
from side_processes import start_servers
from sparsefleet.fleet.meeting import Meeting
from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.optim import SGD
from sparsefleet.store import Constant, RemoteStore, RoundMember, TableSpec
from transport import JOB_KEY

WORKERS = (1, 10, 100, 500)
SERVERS = (1, 2, 4, 8, 16)
WORKERS_OF_SERVERS = 8
TARGET_GROWTH = 1.5
PUSHED_ROWS = 20_000
ROUND_ROWS = 200
FEW_ROWS = 20
GATHERED_BYTES = 100
DIM = 8
KEYS = np.arange(PUSHED_ROWS, dtype=np.uint64)
GRADIENTS = np.ones((PUSHED_ROWS, DIM), np.float32)
IDLE_S = 3.0
FEWEST_TURNS = 20


class ServerProcesses:
    """What the system knows of the servers' processes."""

    def __init__(self, endpoints: Sequence[str], pids: Sequence[int]) -> None:
        self.endpoints = endpoints
        self._pids = pids

    def cpu_s(self) -> float:
        """Return the processor time of all threads so far."""
        # clock_getcpuclockid(3) of each process
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self._pids)

    def memory_bytes(self) -> int:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids)
        return pages * os.sysconf("SC_PAGE_SIZE")

    def num_descriptors(self) -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in self._pids)


class Workers:
    """W clients of all servers, with a thread each for calls that wait for one another."""

    def __init__(self, servers: ServerProcesses, num_workers: int) -> None:
        self.servers = servers
        self.num = num_workers
        self._threads = ThreadPoolExecutor(num_workers)
        self.stores = list(
            self._threads.map(
                lambda i: RemoteStore(servers.endpoints, name=f"simulated-{i}", transport="plain"),
                range(num_workers),
            )
        )
        self.stores[0].define(
            TableSpec(name="t", dim=DIM, optimizer=SGD(lr=0.1), initializer=Constant(0))
        )
        self.stores[0].push("t", KEYS, GRADIENTS, unique=True)

    def all_do(self, work: Callable[[int], object]) -> None:
        """Run `work` of every worker at once."""
        list(self._threads.map(work, range(self.num)))

    def cost_s(self, operations: int, work: Callable[[], object]) -> float:
        """Return the servers' processor time for one of `operations`."""
        began = self.servers.cpu_s()
        work()
        return (self.servers.cpu_s() - began) / operations

    def close(self) -> None:
        self.all_do(lambda i: self.stores[i].close())
        self._threads.shutdown()


@contextlib.contextmanager
def workers(num_workers: int, num_servers: int = 1) -> Iterator[Workers]:
    started, endpoints = start_servers(num_servers, "plain", JOB_KEY)
    try:
        servers = ServerProcesses(endpoints, [one.pid for one in started])
        simulated = Workers(servers, num_workers)
        try:
            yield simulated
        finally:
            simulated.close()
    finally:
        for one in started:
            one.close(terminate=True)


def measure_changes(fleet: Workers, pushes: int) -> dict[str, float]:
    """Cost of pushing and taking while all watch; the memory that watching takes."""
    first = fleet.stores[0]
    before = fleet.servers.memory_bytes()
    fleet.all_do(lambda i: fleet.stores[i].watch_changes("t"))

    def push() -> None:
        for _ in range(pushes):
            first.push("t", KEYS, GRADIENTS, unique=True)

    push()
    cost = fleet.cost_s(pushes, push)
    memory = (fleet.servers.memory_bytes() - before) / PUSHED_ROWS

    def take(i: int) -> None:
        rows = sum(len(keys) for keys, _ in fleet.stores[i].take_changes("t"))
        assert rows == PUSHED_ROWS, rows

    taken = fleet.cost_s(fleet.num, lambda: [take(i) for i in range(fleet.num)])
    return {"push": cost, "take": taken, "memory": memory}


def measure_clocks(fleet: Workers, times: int) -> dict[str, float]:
    """Cost of a report that waits for all, and of a barrier."""
    members = [RoundMember(group="clocks", rank=i, size=fleet.num) for i in range(fleet.num)]

    def reports(i: int) -> None:
        for clock in range(1, times + 1):
            fleet.stores[i].advance_clock(members[i], clock + started[i], bound=0)
        started[i] += times

    def barriers(i: int) -> None:
        for _ in range(times):
            fleet.stores[i].barrier("all", fleet.num)

    started = [0] * fleet.num
    fleet.all_do(reports)
    clock = fleet.cost_s(times * fleet.num, lambda: fleet.all_do(reports))
    fleet.all_do(barriers)
    barrier = fleet.cost_s(times * fleet.num, lambda: fleet.all_do(barriers))
    return {"clock": clock, "barrier": barrier}


def measure_rounds(
    fleet: Workers, rounds: int, num_rows: int = ROUND_ROWS, group: str = "train"
) -> dict[str, float]:
    """Cost of a worker's part in a round, and how long the round takes for each worker."""
    members = [RoundMember(group=group, rank=i, size=fleet.num) for i in range(fleet.num)]
    rng = np.random.default_rng(7)
    keys = [rng.choice(KEYS, num_rows, replace=False) for _ in range(fleet.num)]
    gradients = np.ones((num_rows, DIM), np.float32)
    done = [0] * fleet.num

    def steps(i: int) -> None:
        out = np.empty((num_rows, DIM), np.float32)
        for _ in range(rounds):
            done[i] += 1
            fleet.stores[i].push_round(
                members[i],
                done[i],
                {"t": (keys[i], gradients)},
                rows={"t": (keys[i], out)},
                unique=True,
            )

    fleet.all_do(steps)
    began = time.perf_counter()
    cost = fleet.cost_s(rounds * fleet.num, lambda: fleet.all_do(steps))
    elapsed = (time.perf_counter() - began) / (rounds * fleet.num)
    return {"round": cost, "round elapsed": elapsed}


def measure_gather(fleet: Workers, times: int) -> dict[str, float]:
    """Cost of a worker's part in gathering 100 bytes of each."""
    meetings = [
        Meeting(
            fleet.stores[i],
            RoleInfo(
                kind="worker", index=i, worker_num=fleet.num, server_endpoints=("127.0.0.1:1",)
            ),
        )
        for i in range(fleet.num)
    ]

    def gather(i: int) -> None:
        for _ in range(times):
            assert len(meetings[i].all_gather(b"x" * GATHERED_BYTES)) == fleet.num

    fleet.all_do(gather)
    cost = fleet.cost_s(times * fleet.num, lambda: fleet.all_do(gather))
    return {"gather": cost, "gather per kB": 1e3 * cost / (GATHERED_BYTES * fleet.num)}


def measure_few(fleet: Workers, times: int, rows: int) -> dict[str, float]:
    """Cost of a push, a round and a take of a few rows; all workers watch already."""
    keys, gradients = KEYS[:rows], GRADIENTS[:rows]

    def push() -> None:
        for _ in range(times):
            fleet.stores[0].push("t", keys, gradients, unique=True)

    def take() -> None:
        for store in fleet.stores:
            assert sum(len(found) for found, _ in store.take_changes("t")) == rows

    push()
    pushed = fleet.cost_s(times, push)
    taken = []
    take()
    for _ in range(FEWEST_TURNS):
        fleet.stores[0].push("t", keys, gradients, unique=True)
        taken.append(fleet.cost_s(fleet.num, take))
    return {
        "push of few": pushed,
        "round of few": measure_rounds(fleet, FEWEST_TURNS, rows, "few")["round"],
        "take of few": statistics.mean(taken),
    }


def measure_idle(fleet: Workers) -> dict[str, float]:
    """Cost of a second of a connected worker, and what it holds."""
    cost = fleet.cost_s(1, lambda: threading.Event().wait(IDLE_S))
    return {
        "idle": cost / (fleet.num * IDLE_S),
        "descriptors": fleet.servers.num_descriptors() / fleet.num,
    }


def measure_workers(num_workers: int, calls: int) -> dict[str, float]:
    """Return all figures of one server at this number of workers."""
    times = max(FEWEST_TURNS, calls // num_workers)
    with workers(num_workers) as fleet:
        return {
            **measure_idle(fleet),
            **measure_clocks(fleet, times),
            **measure_rounds(fleet, times),
            **measure_gather(fleet, max(1, calls // num_workers // 2)),
            **measure_changes(fleet, max(3, calls // 100)),  # last: all watch from then on
        }


def measure_servers(num_servers: int, calls: int) -> dict[str, float]:
    """Return all figures at this number of servers."""
    few = FEW_ROWS * num_servers
    with workers(WORKERS_OF_SERVERS, num_servers) as fleet:
        idle = measure_idle(fleet)["idle"]
        found = {
            **measure_clocks(fleet, max(FEWEST_TURNS, calls // 10)),
            **measure_rounds(fleet, max(FEWEST_TURNS, calls // 40), 10 * ROUND_ROWS),
            **measure_changes(fleet, max(3, calls // 20)),
            **measure_few(fleet, calls, few),
        }
        del found["memory"]  # of few rows per server, mostly pages that were free before
        for name, rows in (
            ("round", 10 * ROUND_ROWS),
            ("push", PUSHED_ROWS),
            ("take", PUSHED_ROWS),
        ):
            each = (found[name] - found[f"{name} of few"]) / (rows - few)
            found[f"{name}, the rows"] = rows * each
        for name in ("push", "round", "take"):
            found[f"{name} of few, per server"] = found[f"{name} of few"] / num_servers
        return {**found, "idle per server": idle / num_servers}


def medians(taken: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in taken) for name in taken[0]}


def show(title: str, unit: str, figures: Mapping[int, Mapping[str, float]], few: int) -> None:
    """Print the figures and judge how they grow from `few` to the most."""
    counts = list(figures)
    units = {"memory": ("B a row", 1.0), "descriptors": ("a worker", 1.0)}
    rows = []
    for name in figures[few]:
        text, scale = units.get(name, ("us", 1e6))
        growth = figures[counts[-1]][name] / max(figures[few][name], 1e-12)
        values = [f"{figures[count][name] * scale:,.1f}" for count in counts]
        rows.append([f"{name} ({text})", *values, f"{growth:.2f}x"])
    heads = ["operation", *(f"{count} {unit}" for count in counts), f"from {few}"]
    report(title, heads, rows)
    for name in figures[few]:
        if name.endswith("of few"):  # a request to each server: see the line per server
            continue
        growth = figures[counts[-1]][name] / max(figures[few][name], 1e-12)
        text = f"{name}: {growth:.2f}x from {few} to {counts[-1]} {unit} ({TARGET_GROWTH} wanted):"
        judge(text, growth <= TARGET_GROWTH)


def main() -> None:
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--parts", default="workers,servers", help="comma-separated")
    options = parser.parse_args()
    quick = options.quick
    repeats = 1 if quick else options.repeats
    calls = 50 if quick else 1000
    os.environ["SPARSEFLEET_JOB_KEY"] = JOB_KEY
    console.print(machine())
    written: dict[str, dict[int, dict[str, float]]] = {}
    if "workers" in options.parts.split(","):
        found = {
            count: medians([measure_workers(count, calls) for _ in range(repeats)])
            for count in ((1, 10) if quick else WORKERS)
        }
        title = "Processor time of a server for one operation of one worker"
        show(title, "workers", found, 1 if quick else 10)
        note("a gather returns the bytes of all workers to each; see docs/benchmarks.md")
        written["workers"] = found
    if "servers" in options.parts.split(","):
        found = {
            count: medians([measure_servers(count, calls) for _ in range(repeats)])
            for count in ((1, 2) if quick else SERVERS)
        }
        title = f"Processor time of all servers for one operation of one of {WORKERS_OF_SERVERS}"
        show(title, "servers", found, 1)
        written["servers"] = found
    write_json(options.json, written)


if __name__ == "__main__":
    main()
