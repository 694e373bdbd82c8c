"""Batches from NVIDIA DALI pipelines, for Fluid programs and for `Trainer`.

Needs `pip install sparsefleet[dali]`.

In shapes, B is the number of samples in a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch.utils.dlpack import from_dlpack

from sparsefleet.errors import ConfigError, DataError

__all__ = ["DaliBatches"]

LastBatch = Literal["fill", "partial", "drop"]


class DaliBatches:
    """Passes over DALI pipelines; tensors stay on the device where the pipelines created them.

    pipelines: one pipeline, or one per place, built or not, all with the same batch size.
    names: names of the outputs. A batch is then a dict of name -> tensor [B, ...] for
        `exe.run(feed=...)`, or a list of dicts with several pipelines. If None, batches are tuples,
        the form that `Trainer.fit` takes.
    size: samples per pass of one pipeline; None uses the number that the reader reports.
    reader_name: the pipelines' reader, which reports the number of samples in its shard. It should
        have pad_last_batch=True, so that each pass starts at the first sample. With neither size
        nor reader_name, a pass is endless.
    last_batch: how to treat an incomplete last batch. "fill" keeps it as the pipeline returns it,
        "partial" keeps only samples from this pass, and "drop" drops it.

    Tensors are copies, since pipelines overwrite their own tensors.
    """

    def __init__(
        self,
        pipelines: Any,
        names: Sequence[str] | None = None,
        *,
        size: int | None = None,
        reader_name: str | None = None,
        last_batch: LastBatch = "fill",
    ) -> None:
        self._pipelines = list(pipelines) if isinstance(pipelines, (list, tuple)) else [pipelines]
        if not self._pipelines:
            raise ConfigError("DaliBatches: got no pipelines, expected at least one")
        if last_batch not in ("fill", "partial", "drop"):
            raise ConfigError(
                f"DaliBatches: last_batch must be fill, partial or drop, got {last_batch!r}"
            )
        sizes = {int(pipeline.max_batch_size) for pipeline in self._pipelines}
        if len(sizes) > 1:
            raise ConfigError(
                f"DaliBatches: pipelines must have the same batch size, got {sorted(sizes)}"
            )
        self._batch_size = sizes.pop()
        self._names = None if names is None else list(names)
        self._last_batch: LastBatch = last_batch
        for pipeline in self._pipelines:
            pipeline.build()
        self._size = size if size is not None else self._size_of_shard(reader_name)
        if self._size is not None and self._size < 1:
            raise ConfigError(f"DaliBatches: size must be at least 1, got {self._size}")

    def _size_of_shard(self, reader_name: str | None) -> int | None:
        if reader_name is None:
            return None
        sizes = set()
        for pipeline in self._pipelines:
            known = pipeline.reader_meta(reader_name)
            sizes.add(-(-int(known["epoch_size"]) // int(known["number_of_shards"])))
        return max(sizes)

    @property
    def is_endless(self) -> bool:
        """Return whether a pass is endless."""
        return self._size is None

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        if self._size is None:
            raise TypeError(
                "DaliBatches has no length without size or reader_name, because a pass has no end"
            )
        if self._last_batch == "drop":
            return self._size // self._batch_size
        return -(-self._size // self._batch_size)

    def __iter__(self) -> Iterator[Any]:
        """Iterate over one pass."""
        given = 0
        while self._size is None or given < self._size:
            left = self._batch_size if self._size is None else self._size - given
            batches = [self._outputs(pipeline) for pipeline in self._pipelines]
            given += self._batch_size
            if left < self._batch_size and self._last_batch == "drop":
                return
            if left < self._batch_size and self._last_batch == "partial":
                batches = [tuple(tensor[:left] for tensor in batch) for batch in batches]
            shaped = [self._named(batch) for batch in batches]
            yield shaped[0] if len(shaped) == 1 else shaped

    def _outputs(self, pipeline: Any) -> tuple[torch.Tensor, ...]:
        found = []
        for place, output in enumerate(pipeline.run()):
            if not output.is_dense_tensor():
                raise DataError(
                    f"output {self._name_of(place)} of a DALI pipeline has samples of different "
                    "shapes; resize, crop or pad them in the pipeline"
                )
            found.append(from_dlpack(output.as_tensor()).clone())
        if self._names is not None and len(found) != len(self._names):
            raise ConfigError(
                f"DaliBatches: got {len(self._names)} names {self._names} for a pipeline with "
                f"{len(found)} outputs"
            )
        return tuple(found)

    def _name_of(self, place: int) -> str:
        if self._names is None or place >= len(self._names):
            return str(place)
        return f"'{self._names[place]}'"

    def _named(self, batch: tuple[torch.Tensor, ...]) -> Any:
        return batch if self._names is None else dict(zip(self._names, batch, strict=True))
