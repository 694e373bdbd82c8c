"""Starts servers and workers as processes, watches them and stops them."""

from sparsefleet.launch.job import run_job
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["LaunchConfig", "run_job"]
