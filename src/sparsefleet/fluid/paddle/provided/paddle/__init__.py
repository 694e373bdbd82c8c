"""The package that scripts import as `paddle`: sparsefleet under the names of Paddle 1.8."""

from sparsefleet.fluid.paddle.paddle_package import __getattr__ as __getattr__
from sparsefleet.fluid.paddle.paddle_package import provide

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
