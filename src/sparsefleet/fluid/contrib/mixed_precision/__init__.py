"""Training with scaled losses, as Fluid does for float16."""

from sparsefleet.fluid.contrib.mixed_precision import decorator
from sparsefleet.fluid.contrib.mixed_precision.decorator import decorate
from sparsefleet.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.mixed_precision")

__all__ = ["AutoMixedPrecisionLists", "decorate", "decorator"]
