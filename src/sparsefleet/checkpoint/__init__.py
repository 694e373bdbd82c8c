"""Checkpoints: directories of files in open formats, each committed in one atomic step."""

from sparsefleet.checkpoint.checkpoint import Checkpoint
from sparsefleet.checkpoint.diff import CheckpointDiff, TableDiff, TensorDiff, diff
from sparsefleet.checkpoint.import_export import (
    export_table,
    import_paddle,
    import_table,
    import_vectors,
)
from sparsefleet.checkpoint.manifest import Manifest
from sparsefleet.checkpoint.paddle_files import read_paddle_persistables
from sparsefleet.checkpoint.row_chunk import RowChunk
from sparsefleet.checkpoint.series import (
    ListedCheckpoint,
    clean_up,
    compact,
    latest,
    list_checkpoints,
    rotate,
)

__all__ = [
    "Checkpoint",
    "CheckpointDiff",
    "ListedCheckpoint",
    "Manifest",
    "RowChunk",
    "TableDiff",
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
]
