"""Predictions from exported models."""

from sparsefleet.serve.predictor import Engine, Predictor

__all__ = ["Engine", "Predictor"]
