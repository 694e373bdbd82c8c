"""Predictions over HTTP. Needs the extra `serve`."""

from sparsefleet.serve.http.app import make_app
from sparsefleet.serve.http.config import ServeConfig
from sparsefleet.serve.http.run_service import run_service

__all__ = ["ServeConfig", "make_app", "run_service"]
