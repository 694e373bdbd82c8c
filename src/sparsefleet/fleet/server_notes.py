"""What servers tell workers from their start on."""

__all__ = ["MODEL_DIR_NOTE"]

MODEL_DIR_NOTE = "fleet/model_dir"
"""The note with the directory from which the tables are to be loaded."""
