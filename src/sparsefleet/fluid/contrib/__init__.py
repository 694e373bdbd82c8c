"""What Fluid kept under this name."""

from sparsefleet.fluid.unknown_names import known_names

__getattr__ = known_names(
    __name__,
    "fluid.contrib",
    {
        "layers": "sparsefleet.fluid.contrib.layers",
        "memory_usage": "sparsefleet.fluid.contrib.memory_usage_calc",
        "mixed_precision": "sparsefleet.fluid.contrib.mixed_precision",
        "reader": "sparsefleet.fluid.contrib.reader",
        "utils": "sparsefleet.fluid.contrib.utils",
    },
)

__all__ = ["layers", "memory_usage", "mixed_precision", "reader", "utils"]
