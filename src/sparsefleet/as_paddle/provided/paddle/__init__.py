"""What scripts find as `paddle`: sparsefleet, by the names that Paddle 1.8 has."""

from sparsefleet.as_paddle.paddle_package import __getattr__ as __getattr__
from sparsefleet.as_paddle.paddle_package import provide

provide(__name__)

__all__ = [
    "__version__",
    "batch",
    "compat",
    "dataset",
    "distributed",
    "enable_static",
    "fluid",
    "reader",
    "version",
]
