"""Workers that share data, run as a job by test_dataset_job.py.

dataset_script.py FOLDER: the files part-* of FOLDER are distributed over the workers, first by a
global shuffle of what each has loaded, then from a shared list. What each worker received is
written to FOLDER/got-<how>-<worker>.
"""

import sys
from pathlib import Path

from torch import nn

from sparsefleet import fleet, fluid, optim
from sparsefleet.data import MultiSlot, Reader, Slot

folder = Path(sys.argv[1])
files = sorted(str(path) for path in folder.glob("part-*"))
fleet.init()
fleet.distribute(nn.Linear(1, 1), optim.SGD(lr=0.1), "async")


def write(how: str, ids: list[int]) -> None:
    path = folder / f"got-{how}-{fleet.worker_index()}"
    path.write_text("\n".join(map(str, ids)))


if fleet.is_server():
    fleet.run_server()
else:
    fleet.init_worker()
    dataset = fluid.DatasetFactory().create_dataset("InMemoryDataset")
    dataset.set_use_var([fluid.data("id", [None], "int64")])
    dataset.set_filelist(fleet.split_files(files))
    dataset.set_fleet_send_batch_size(50)
    dataset.load_into_memory()
    loaded = dataset.get_memory_data_size(fleet)
    for shuffle in range(2):
        dataset.global_shuffle(fleet, seed=shuffle)
        assert dataset.get_shuffle_data_size(fleet) == loaded
        write(f"shuffle{shuffle}", [key for feed in dataset for key in feed["id"].tolist()])
    reader = Reader(
        files, MultiSlot(Slot("id", "uint64", ())), 16, sharding=fleet.sharding("train")
    )
    for epoch in range(2):
        write(f"epoch{epoch}", [key for batch in reader for key in batch["id"].tolist()])
    fleet.barrier_worker()
    fleet.stop_worker()
