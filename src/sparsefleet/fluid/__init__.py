"""Fluid's names, each loaded at first use: a data generator needs none of them but itself."""

from sparsefleet._lazy import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "CPUPlace": "sparsefleet.fluid.places",
        "CUDAPinnedPlace": "sparsefleet.fluid.places",
        "CUDAPlace": "sparsefleet.fluid.places",
        "DataFeeder": "sparsefleet.fluid.data_feeder",
        "LoDTensor": "sparsefleet.fluid.lod_tensor",
        "LoDTensorArray": "sparsefleet.fluid.lod_tensor",
        "Variable": "sparsefleet.fluid.variable",
        "core": "sparsefleet.fluid.core",
        "cpu_places": "sparsefleet.fluid.places",
        "create_lod_tensor": "sparsefleet.fluid.lod_tensor",
        "create_random_int_lodtensor": "sparsefleet.fluid.lod_tensor",
        "cuda_pinned_places": "sparsefleet.fluid.places",
        "cuda_places": "sparsefleet.fluid.places",
        "data": "sparsefleet.fluid.variable",
        "incubate": "sparsefleet.fluid.incubate",
        "io": "sparsefleet.fluid.io",
        "is_compiled_with_cuda": "sparsefleet.fluid.places",
        "layers": "sparsefleet.fluid.layers",
    },
)

__all__ = [
    "CPUPlace",
    "CUDAPinnedPlace",
    "CUDAPlace",
    "DataFeeder",
    "LoDTensor",
    "LoDTensorArray",
    "Variable",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_pinned_places",
    "cuda_places",
    "data",
    "incubate",
    "io",
    "is_compiled_with_cuda",
    "layers",
]
