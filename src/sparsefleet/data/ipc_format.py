"""Arrow's own files: IPC files and streams, Feather."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparsefleet.data.arrow_source import ArrowFormat, RowBatches, file_errors
from sparsefleet.data.byte_source import open_file
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import FilePart
from sparsefleet.errors import InputFileError

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_NOUN = "Arrow IPC"


class ArrowIpc(ArrowFormat):
    """Arrow IPC files, of either layout (file or stream), and Feather files of version 2.

    slots: as for `Parquet`. A file is read by one thread, a record batch at a time.

    >>> import pathlib, tempfile
    >>> import pyarrow, pyarrow.feather
    >>> from sparsefleet.data import ArrowIpc, Reader, Slot
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "day.feather"
    >>> pyarrow.feather.write_feather(pyarrow.table({"ad": [17, 18, 99]}), path)
    >>> [batch["ad"].tolist() for batch in Reader(path, ArrowIpc(Slot("ad", "uint64", ())), 2)]
    [[17, 18], [99]]
    """

    @contextlib.contextmanager
    def open_batches(self, part: FilePart, config: ReaderConfig) -> Iterator[RowBatches]:
        import pyarrow as pa  # 40 MB, which only who reads such files pays

        path = part.path
        with open_file(path, config.storage_options) as file:
            with file_errors(path, _NOUN):
                magic = file.read(len(_FILE_MAGIC))
                if magic.startswith(_FEATHER_1_MAGIC):
                    raise InputFileError(
                        f"{path}: is a Feather file of version 1: write it again with "
                        "pyarrow.feather.write_feather(table, path), which gives version 2"
                    )
                source = pa.PythonFile(file, "r") if "://" in path else pa.OSFile(path)
                opener = pa.ipc.open_file if magic == _FILE_MAGIC else pa.ipc.open_stream
                source.seek(0)
                schema = opener(source).schema
                source.seek(0)
                names = self.column_names
                wanted = [index for index, name in enumerate(schema.names) if name in names]
                options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
                reader = opener(source, options=options)
            yield RowBatches(schema, _batches(reader, path), 0, None)


def _batches(reader: Any, path: str) -> Iterator[pa.RecordBatch]:
    """The batches of a file or a stream; damage is found before values are used."""
    import pyarrow as pa

    with file_errors(path, _NOUN):
        if isinstance(reader, pa.ipc.RecordBatchFileReader):
            for index in range(reader.num_record_batches):
                yield _checked(reader.get_batch(index))
        else:
            for batch in reader:
                yield _checked(batch)


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch.validate(full=True)
    return batch
