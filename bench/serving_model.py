"""The model that bench/serving.py serves, its requests, and the same computation without a service.

Letters: B examples.
"""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from sparsefleet.data.features import Categorical, Features, Numeric
from sparsefleet.nn import bind
from sparsefleet.optim import SGD
from sparsefleet.serving import FileRows
from sparsefleet.serving.export import read_manifest, save_inference_model
from sparsefleet.store import LocalStore, Normal
from sparsefleet.zoo import CtrDnn, Tables

SLOTS, DENSE, DIM = 26, 13, 10
TARGET = "output"


class Clicks(CtrDnn):
    """The zoo's CTR-DNN on 26 ids of one table and 13 numbers, and a sigmoid of its logit."""

    def __init__(self) -> None:
        columns = tuple(f"C{column}" for column in range(SLOTS))
        numbers = tuple(f"I{column}" for column in range(DENSE))
        features = Features(
            Categorical("ids", columns=columns, dim=DIM), Numeric("dense", columns=numbers)
        )
        super().__init__(features, tables=Tables(initializer=Normal(0.0, 0.1)))

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:  # type: ignore[override]
        return torch.sigmoid(super().forward(ids=ids, dense=dense))


def export(directory: Path, num_rows: int) -> None:
    """Return a model with a row for each id below `num_rows`."""
    torch.manual_seed(0)
    model = Clicks()
    bind(model, LocalStore(), SGD(lr=0.0))
    for begin in range(0, num_rows, SLOTS * 10_000):
        ids = torch.arange(begin, min(begin + SLOTS * 10_000, num_rows))
        model.rows.tables["of_ids"](ids)
    example = (torch.zeros(4, SLOTS, dtype=torch.int64), torch.rand(4, DENSE))
    save_inference_model(directory, model, example, onnx=True)


def examples(batch: int, num_rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(batch)
    return {
        "ids": rng.integers(0, num_rows, (batch, SLOTS)),
        "dense": rng.random((batch, DENSE), np.float32),
    }


def as_json(inputs: dict[str, np.ndarray]) -> bytes:
    rows = zip(*(array.tolist() for array in inputs.values()), strict=True)
    return json.dumps({"examples": [dict(zip(inputs, row, strict=True)) for row in rows]}).encode()


def as_arrow(inputs: dict[str, np.ndarray]) -> bytes:
    columns = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])
        for name, array in inputs.items()
    }
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


class Bare:
    """ONNX Runtime on the same graph, with rows from a NumPy array: without service or keys."""

    def __init__(self, directory: Path, num_rows: int) -> None:
        import onnxruntime

        manifest = read_manifest(directory)
        [lookup, dense] = manifest.onnx.steps
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(str(directory / str(dense.file)), options)
        self._rows = FileRows(directory).tables()["ids"].look_up(np.arange(num_rows))
        self._name = lookup.outputs[0]
        self._inputs = dense.inputs

    def predict(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
        given = {"dense": inputs["dense"], self._name: self._rows[inputs["ids"]]}
        [found] = self._session.run(None, {name: given[name] for name in self._inputs})
        scores: np.ndarray = found
        return scores

    def measure(
        self, inputs: dict[str, np.ndarray], clients: int, seconds: float
    ) -> dict[str, float]:
        """Run one thread per client, each with one request after another."""
        taken: list[float] = []
        begin = time.perf_counter()

        def run() -> None:
            while (start := time.perf_counter()) < begin + seconds:
                self.predict(inputs)
                taken.append(time.perf_counter() - start)

        threads = [threading.Thread(target=run) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - begin
        taken.sort()
        return {
            "seconds": elapsed,
            "requests": len(taken),
            "errors": 0,
            "p50_ms": 1000 * taken[len(taken) // 2],
            "p99_ms": 1000 * taken[min(len(taken) - 1, int(0.99 * len(taken)))],
        }
