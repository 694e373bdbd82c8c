"""Start servers and workers as processes, watch them and stop them."""

from sparsefleet.launch.job import run_job
from sparsefleet.launch.launch_config import LaunchConfig

__all__ = ["LaunchConfig", "run_job"]
