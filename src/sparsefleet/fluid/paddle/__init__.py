"""Run scripts that import `paddle` unchanged, with sparsefleet under that name."""

from sparsefleet.fluid.paddle.as_paddle import PROVIDED_PATH, environment_with_paddle

__all__ = ["PROVIDED_PATH", "environment_with_paddle"]
