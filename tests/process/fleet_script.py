"""A script with the role branches of Fluid's fleet, run as a job by test_fleet_job.py.

fleet_script.py MODE OUT [MODEL_DIR]: trains, saves to OUT; servers start from MODEL_DIR if given.
"""

import sys

import torch
from torch import nn

from sparsefleet import fleet
from sparsefleet.nn import SparseEmbedding

mode, out, *rest = sys.argv[1:]
torch.manual_seed(0)
model = nn.Sequential(SparseEmbedding("ads", 4), nn.Linear(4, 1))
fleet.init()
fleet.distribute(model, torch.optim.Adam(model.parameters(), lr=0.1), mode)
if fleet.is_server():
    fleet.init_server(*rest)
    fleet.run_server()
else:
    fleet.init_worker()
    first = model[1].weight.detach().clone()
    ids = torch.arange(10) + 5 * fleet.worker_index()
    if not rest:
        for _ in range(20):
            with fleet.step(ids):
                model(ids).pow(2).mean().backward()
        fleet.end_pass()
    fleet.settle()
    if fleet.is_first_worker():
        fleet.save_persistables(out)
    with fleet.evaluating():
        total = model(torch.arange(15)).sum().item()
    starts = fleet.all_gather(first.numpy().tobytes())
    assert len(set(starts)) == 1, "workers began with different parameters"
    print(f"worker {fleet.worker_index()} of {fleet.worker_num()}: {total:.6f}", flush=True)
    fleet.barrier_worker()
    fleet.stop_worker()
