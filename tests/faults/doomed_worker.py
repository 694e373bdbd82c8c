"""Worker 1 of 2, which is killed: doomed_worker.py HOW ENDPOINTS FILES

HOW is "exchange": it opens an exchange, sends a letter, and waits; or "sharding": it takes a file,
trains with one batch of it, and waits. It prints "ready" before it waits.
"""

import sys
import threading

from torch import nn

from sparsefleet import optim
from sparsefleet.data import MultiSlot, Reader, Slot
from sparsefleet.fleet import Fleet, RoleInfo

how, endpoints, files = sys.argv[1:]
fleet = Fleet()
fleet.init(
    RoleInfo(kind="worker", index=1, worker_num=2, server_endpoints=tuple(endpoints.split(",")))
)
fleet.distribute(nn.Linear(1, 1), optim.SGD(lr=0.1), "async")
fleet.init_worker()
if how == "exchange":
    exchange = fleet.open_exchange()
    exchange.send(0, b"the only letter")
else:
    slots = MultiSlot(Slot("id", "uint64", ()))
    reader = Reader(files, slots, 4, sharding=fleet.sharding("train"))
    batches = iter(reader)
    print("taken", next(batches)["id"].tolist(), flush=True)
    fleet.barrier_worker()
    assert batches._shard is not None
    batches._shard._send_report()  # as it does every two seconds
print("ready", flush=True)
threading.Event().wait()
