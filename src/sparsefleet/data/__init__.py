"""Training data: files and generators into batches, read by threads of their own."""

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.binary_format import MultiSlotBinary
from sparsefleet.data.csv_format import Csv
from sparsefleet.data.field import Field
from sparsefleet.data.file_list import list_files, split_files
from sparsefleet.data.formats import CriteoTsv, MultiSlot
from sparsefleet.data.hashing import hash64, hash_ids
from sparsefleet.data.ipc_format import ArrowIpc
from sparsefleet.data.memory_data import MemoryData
from sparsefleet.data.parquet_format import Parquet
from sparsefleet.data.progress import merge_states
from sparsefleet.data.reader import Reader
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_pass import ReaderPass
from sparsefleet.data.reader_stats import ReaderStats
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.records import Records
from sparsefleet.data.sharding import LocalSharding, Sharding
from sparsefleet.data.slot import Slot

__all__ = [
    "Arrangement",
    "ArrowIpc",
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
    "ReaderPass",
    "ReaderStats",
    "RecordFormat",
    "Records",
    "Sharding",
    "Slot",
    "hash64",
    "hash_ids",
    "list_files",
    "merge_states",
    "split_files",
]
