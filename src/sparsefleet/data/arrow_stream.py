"""Arrow tables from a Python function: Hugging Face datasets, Ray Data, and the like."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from sparsefleet.data.arrow_format import ArrowFormat, RowBatches
from sparsefleet.data.field import Slot
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import FilePart
from sparsefleet.errors import ConfigError, DataError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowStream"]


class ArrowStream(ArrowFormat):
    """The rows of Arrow tables or record batches that a function yields.

    function: called without arguments on the reading thread; returns an iterable. To resume, it is
        run again and its first rows are skipped, so it should yield the same ones each time. The
        reader's files are None, and each of several workers needs a function for its own part.
    slots: as for `Parquet`.

    A Hugging Face dataset is ``lambda: dataset.with_format("arrow").iter(8192)``, a Ray dataset
    ``lambda: dataset.iter_batches(batch_format="pyarrow")``.

    >>> import pyarrow
    >>> from sparsefleet.data import ArrowStream, Reader, Slot
    >>> tables = [pyarrow.table({"ad": [17, 18]}), pyarrow.table({"ad": [99]})]
    >>> format = ArrowStream(lambda: tables, Slot("ad", "uint64", ()))
    >>> [batch["ad"].tolist() for batch in Reader(None, format, batch_size=2)]
    [[17, 18], [99]]
    """

    def __init__(
        self, function: Callable[[], Iterable[pa.Table | pa.RecordBatch]], *slots: Slot
    ) -> None:
        super().__init__(*slots)
        if not callable(function):
            raise ConfigError(
                "ArrowStream takes a function that returns an iterable of Arrow tables, got a "
                f"{type(function).__name__}"
            )
        self.function = function
        self.unnamed_input = f"<{getattr(function, '__name__', type(function).__name__)}>"

    @contextlib.contextmanager
    def open_batches(self, part: FilePart, config: ReaderConfig) -> Iterator[RowBatches]:  # noqa: ARG002
        batches = self._batches(part.path)
        first = next(batches, None)
        if first is None:
            raise DataError(f"{part.path}: the function of ArrowStream yielded no table")
        yield RowBatches(first.schema, _chained(first, batches), 0, None)

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        """Yield record batches; add the number of the table to the function's errors."""
        import pyarrow as pa

        number = 0
        try:
            tables = iter(self.function())
            while (table := next(tables, None)) is not None:
                number += 1
                if isinstance(table, pa.RecordBatch):
                    yield table
                elif isinstance(table, pa.Table):
                    yield from table.combine_chunks().to_batches()
                else:
                    raise DataError(
                        f"{path}, table {number}: expected a pyarrow Table or RecordBatch, found a "
                        f"{type(table).__name__}"
                    )
        except DataError:
            raise
        except Exception as error:  # the edge to code that is not ours
            raise DataError(
                f"{path}, table {number + 1}: the function of ArrowStream failed: "
                f"{type(error).__name__}: {error}"
            ) from error


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    for batch in rest:
        if batch.schema != first.schema:
            raise DataError(
                "the tables of ArrowStream have different schemas: "
                f"{first.schema.to_string()!r:.200} and {batch.schema.to_string()!r:.200}"
            )
        yield batch
