"""Roles, and what fleets have in common."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "fleet_base": "sparsefleet.fluid.incubate.fleet.base.fleet_base",
        "role_maker": "sparsefleet.fluid.incubate.fleet.base.role_maker",
    },
)

__all__ = ["fleet_base", "role_maker"]
