"""Predictions over HTTP. Requires the `serve` extra."""

from sparsefleet.serving.http.app import make_app, run_service
from sparsefleet.serving.http.config import ServeConfig

__all__ = ["ServeConfig", "make_app", "run_service"]
