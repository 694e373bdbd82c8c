"""Checkpoints: directories of files that people can open, committed in one step."""

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.compact import compact
from sparsefleet.checkpoint.diff import CheckpointDiff, TableDiff, TensorDiff, diff
from sparsefleet.checkpoint.entries import (
    BaseEntry,
    DenseEntry,
    FileEntry,
    StateColumn,
    TableEntry,
)
from sparsefleet.checkpoint.export_table import export_table
from sparsefleet.checkpoint.import_checkpoint import import_paddle, import_vectors
from sparsefleet.checkpoint.import_table import import_table
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.names import step_name
from sparsefleet.checkpoint.paddle_files import read_paddle_persistables
from sparsefleet.checkpoint.pending_checkpoint import PendingCheckpoint
from sparsefleet.checkpoint.row_chunk import RowChunk, RowLayout
from sparsefleet.checkpoint.row_file_writer import RowFileWriter, write_removed_keys
from sparsefleet.checkpoint.series import (
    ListedCheckpoint,
    clean_up,
    latest,
    list_checkpoints,
    rotate,
)
from sparsefleet.checkpoint.shard_map import shard_of

__all__ = [
    "BaseEntry",
    "Checkpoint",
    "CheckpointDiff",
    "DenseEntry",
    "FileEntry",
    "ListedCheckpoint",
    "Manifest",
    "PendingCheckpoint",
    "RowChunk",
    "RowFileWriter",
    "RowLayout",
    "StateColumn",
    "TableDiff",
    "TableEntry",
    "TensorDiff",
    "clean_up",
    "compact",
    "diff",
    "export_table",
    "import_paddle",
    "import_table",
    "import_vectors",
    "latest",
    "list_checkpoints",
    "read_paddle_persistables",
    "rotate",
    "shard_of",
    "step_name",
    "write_removed_keys",
]
