"""Fleets with parameter servers."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "distribute_transpiler": (
            "sparsefleet.fluid.incubate.fleet.parameter_server.distribute_transpiler"
        ),
        "pslib": "sparsefleet.fluid.incubate.fleet.parameter_server.pslib",
    },
)

__all__ = ["distribute_transpiler", "pslib"]
