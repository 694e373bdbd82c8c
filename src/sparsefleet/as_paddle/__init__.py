"""Runs scripts that import `paddle`, untouched: inside, that is sparsefleet."""

from sparsefleet.as_paddle.environment import PROVIDED_PATH, environment_with_paddle

__all__ = ["PROVIDED_PATH", "environment_with_paddle"]
