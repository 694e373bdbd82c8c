"""Training data: reads files and generators into batches, on background threads."""

from sparsefleet.data.arrow_format import ArrowIpc, ArrowStream, Parquet
from sparsefleet.data.field import Field, Slot
from sparsefleet.data.file_list import split_files
from sparsefleet.data.formats import CriteoTsv, Csv, MultiSlot, MultiSlotBinary
from sparsefleet.data.memory_data import MemoryData
from sparsefleet.data.progress import merge_states
from sparsefleet.data.reader import Reader
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderStats
from sparsefleet.data.record_source import RecordFormat
from sparsefleet.data.records import Records, hash64, hash_ids
from sparsefleet.data.sharding import LocalSharding

__all__ = [
    "ArrowIpc",
    "ArrowStream",
    "CriteoTsv",
    "Csv",
    "Field",
    "LocalSharding",
    "MemoryData",
    "MultiSlot",
    "MultiSlotBinary",
    "Parquet",
    "Reader",
    "ReaderConfig",
    "ReaderStats",
    "RecordFormat",
    "Records",
    "Slot",
    "hash64",
    "hash_ids",
    "merge_states",
    "split_files",
]
