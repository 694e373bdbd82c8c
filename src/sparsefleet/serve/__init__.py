"""Predictions from exported models."""

from sparsefleet.serve.predictor import Engine, Predictor
from sparsefleet.serve.row_store import FileRows, RowSource, RowStore, Tables

__all__ = ["Engine", "FileRows", "Predictor", "RowSource", "RowStore", "Tables"]
