"""Predictions over HTTP. Requires the `serve` extra."""

from sparsefleet.serving.http.app import make_app
from sparsefleet.serving.http.config import ServeConfig
from sparsefleet.serving.http.run_service import run_service

__all__ = ["ServeConfig", "make_app", "run_service"]
