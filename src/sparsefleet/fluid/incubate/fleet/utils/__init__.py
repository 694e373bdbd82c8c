"""Tools of fleets."""

from sparsefleet.fluid.unknown_names import known_names

__getattr__ = known_names(
    __name__,
    "fluid.incubate.fleet.utils",
    {
        "fleet_util": "sparsefleet.fluid.incubate.fleet.utils.fleet_util",
        "hdfs": "sparsefleet.fluid.incubate.fleet.utils.hdfs",
    },
)

__all__ = ["fleet_util", "hdfs"]
