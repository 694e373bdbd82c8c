"""Training data: text files into batches, read and parsed by native threads."""

from sparsefleet.data.arrangement import Arrangement
from sparsefleet.data.binary_format import MultiSlotBinary
from sparsefleet.data.file_list import list_files, split_files
from sparsefleet.data.formats import CriteoTsv, MultiSlot
from sparsefleet.data.hashing import hash64, hash_ids
from sparsefleet.data.memory_data import MemoryData
from sparsefleet.data.progress import merge_states
from sparsefleet.data.reader import Reader, ReaderPass
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.reader_stats import ReaderStats
from sparsefleet.data.record_format import RecordFormat
from sparsefleet.data.sharding import LocalSharding, Sharding
from sparsefleet.data.slot import Slot

__all__ = [
    "Arrangement",
    "CriteoTsv",
    "LocalSharding",
    "MemoryData",
    "MultiSlot",
    "MultiSlotBinary",
    "Reader",
    "ReaderConfig",
    "ReaderPass",
    "ReaderStats",
    "RecordFormat",
    "Sharding",
    "Slot",
    "hash64",
    "hash_ids",
    "list_files",
    "merge_states",
    "split_files",
]
