"""What Fluid kept under this name: data generators and fleets."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "data_generator": "sparsefleet.fluid.incubate.data_generator",
        "fleet": "sparsefleet.fluid.incubate.fleet",
    },
)

__all__ = ["data_generator", "fleet"]
