"""A worker of a Fluid job that may use hardly more memory than it starts with.

limited_worker.py save|load ENDPOINTS ROWS HEADROOM_BYTES FOLDER...: trains ROWS rows on servers and
saves them to FOLDERs, or loads and checks each. The address space is limited to what the worker has
mapped when training starts, plus HEADROOM_BYTES. The first folder has the layout of servers, the
second one file per variable.
"""

import json
import resource
import sys
from collections.abc import Iterator

import numpy as np

from sparsefleet import fluid
from sparsefleet.fluid.fleet import Role, StrategyFactory, UserDefinedRoleMaker
from sparsefleet.fluid.fleet.program_fleet import ProgramFleet

DIM = 64
CHUNK = 8192
TABLE = "rows"

action, endpoints, num_rows, headroom = (
    sys.argv[1],
    sys.argv[2].split(","),
    *map(int, sys.argv[3:5]),
)
folders = sys.argv[5:]

ids = fluid.layers.data("ids", [1], dtype="int64")
found = fluid.layers.embedding(ids, [2**40, DIM], is_sparse=True, param_attr=TABLE)
loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(found, 1)))
fleet = ProgramFleet()
fleet.init(UserDefinedRoleMaker(0, Role.WORKER, 1, endpoints))
strategy = StrategyFactory.create_sync_strategy()
fleet.distributed_optimizer(fluid.optimizer.Adagrad(0.01), strategy).minimize(loss)
exe = fluid.Executor()
fleet.init_worker()
exe.run(fluid.default_startup_program())
exe.run(fluid.default_main_program(), feed={"ids": np.array([[3], [5]])})
store = fleet.model.store


def gradients(keys: np.ndarray) -> np.ndarray:
    """Return a distinct gradient for each row and column."""
    return np.asarray(1 + (keys[:, None] + np.arange(DIM)) % 7, np.float32)


def key_chunks() -> Iterator[np.ndarray]:
    """Yield ids that are far apart, like hashes."""
    for begin in range(0, num_rows, CHUNK):
        yield np.arange(begin, min(begin + CHUNK, num_rows), dtype=np.int64) * 1_000_003 + 11


def limit_memory() -> int:
    with open("/proc/self/statm") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + headroom, mapped + headroom))
    try:
        np.ones(headroom // 2, np.float32)  # twice as much; some of the heap may be free
    except MemoryError:
        return mapped + headroom
    raise AssertionError("the limit has no effect")


def digest() -> list[float]:
    """Return the number of rows, and weighted sums of values and state over all rows."""
    count, sums = 0, np.zeros(2)
    for rows in store.rows(TABLE, chunk_rows=CHUNK):
        count += len(rows.keys)
        weight = 1.0 + (rows.keys % 1009)[:, None]
        sums += [(rows.values * weight).sum(), (rows.state * weight).sum()]
    return [count, *sums.tolist()]


report: dict[str, object] = {}
if action == "save":
    for keys in key_chunks():
        store.push(TABLE, keys, gradients(keys), unique=True)
    report["limit"] = limit_memory()
    report["digest"] = digest()
    fleet.save_persistables(exe, folders[0])
    fleet.save_persistables(exe, folders[1], table_layout="file")
else:
    report["limit"] = limit_memory()
    for folder in folders:
        fluid.io.load_persistables(exe, folder, fluid.default_main_program())
        report[folder] = digest()
        some = next(key_chunks())[:100]
        store.push(TABLE, some, gradients(some), unique=True)  # the next load must undo it
info = store.info(TABLE)
report["table_bytes"] = int(info.size) * (8 + 4 * (info.dim + info.state_dim))
report["peak_rss"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(report), flush=True)
fleet.stop_worker()
