"""Fleets of Fluid, under its paths."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "base": "sparsefleet.fluid.incubate.fleet.base",
        "collective": "sparsefleet.fluid.incubate.fleet.collective",
        "parameter_server": "sparsefleet.fluid.incubate.fleet.parameter_server",
        "utils": "sparsefleet.fluid.incubate.fleet.utils",
    },
)

__all__ = ["base", "collective", "parameter_server", "utils"]
