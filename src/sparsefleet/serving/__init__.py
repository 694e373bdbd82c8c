"""Predict with exported models."""

from sparsefleet.serving.predictor import Engine, Predictor
from sparsefleet.serving.row_stores.row_store import FileRows, RowSource, RowStore, Tables

__all__ = ["Engine", "FileRows", "Predictor", "RowSource", "RowStore", "Tables"]
