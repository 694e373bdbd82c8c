"""Lower programs to graphs of torch functions."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "Lowered": "sparsefleet.fluid.lowering.lowered",
        "find_op": "sparsefleet.fluid.lowering.registry",
        "op": "sparsefleet.fluid.lowering.registry",
        "op_types": "sparsefleet.fluid.lowering.registry",
    },
)

__all__ = ["Lowered", "find_op", "op", "op_types"]
