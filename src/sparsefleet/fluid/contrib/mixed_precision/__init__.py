"""Training in half precision with float32 parameters."""

from sparsefleet.fluid.contrib.mixed_precision import decorator, fp16_lists, fp16_utils
from sparsefleet.fluid.contrib.mixed_precision.decorator import decorate
from sparsefleet.fluid.contrib.mixed_precision.fp16_lists import AutoMixedPrecisionLists
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.mixed_precision")

__all__ = ["AutoMixedPrecisionLists", "decorate", "decorator", "fp16_lists", "fp16_utils"]
