"""Fleets of Fluid, under its paths."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "base": "sparsefleet.fluid.incubate.fleet.base",
        "parameter_server": "sparsefleet.fluid.incubate.fleet.parameter_server",
    },
)

__all__ = ["base", "parameter_server"]
