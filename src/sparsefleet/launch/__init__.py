"""Starting servers and workers as processes, watching them, and ending them."""

from sparsefleet.launch.command_line import (
    LAUNCH_DESCRIPTION,
    LAUNCH_EPILOG,
    add_launch_flags,
    launch_config,
)
from sparsefleet.launch.job import run_job
from sparsefleet.launch.launch_config import LaunchConfig, PaddleWorkers

__all__ = [
    "LAUNCH_DESCRIPTION",
    "LAUNCH_EPILOG",
    "LaunchConfig",
    "PaddleWorkers",
    "add_launch_flags",
    "launch_config",
    "run_job",
]
