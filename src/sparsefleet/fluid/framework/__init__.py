"""Programs, which are built by layers and run by an Executor."""

from sparsefleet.fluid.framework.block import Block
from sparsefleet.fluid.framework.call_site import CallSite, ProgramError, call_site
from sparsefleet.fluid.framework.default_programs import (
    default_main_program,
    default_startup_program,
    device_guard,
    in_dygraph_mode,
    name_scope,
    program_guard,
    switch_main_program,
    switch_startup_program,
)
from sparsefleet.fluid.framework.operator import Operator, Role
from sparsefleet.fluid.framework.places import (
    cpu_places,
    cuda_pinned_places,
    cuda_places,
    is_compiled_with_cuda,
)
from sparsefleet.fluid.framework.program import Program
from sparsefleet.fluid.framework.variable import (
    EMPTY_VAR_NAME,
    GRAD_VAR_SUFFIX,
    TEMP_VAR_NAME,
    ZERO_VAR_SUFFIX,
    Parameter,
    Variable,
    convert_np_dtype_to_dtype_,
    grad_var_name,
)
from sparsefleet.fluid.paths import known_names

__getattr__ = known_names(
    __name__,
    "fluid.framework",
    {
        "_current_expected_place": "sparsefleet.fluid.framework.default_programs",
        "_dygraph_place_guard": "sparsefleet.fluid.framework.default_programs",
        "_get_var": "sparsefleet.fluid.framework.default_programs",
        "disable_dygraph": "sparsefleet.fluid.dygraph.eager",
        "enable_dygraph": "sparsefleet.fluid.dygraph.eager",
        "get_flags": "sparsefleet.fluid.framework.flags",
        "require_version": "sparsefleet.fluid.paddle.version",
        "set_flags": "sparsefleet.fluid.framework.flags",
    },
)

__all__ = [
    "Block",
    "CallSite",
    "EMPTY_VAR_NAME",
    "GRAD_VAR_SUFFIX",
    "Operator",
    "Parameter",
    "Program",
    "ProgramError",
    "Role",
    "TEMP_VAR_NAME",
    "Variable",
    "ZERO_VAR_SUFFIX",
    "call_site",
    "convert_np_dtype_to_dtype_",
    "cpu_places",
    "cuda_pinned_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "device_guard",
    "disable_dygraph",
    "enable_dygraph",
    "get_flags",
    "grad_var_name",
    "in_dygraph_mode",
    "is_compiled_with_cuda",
    "name_scope",
    "program_guard",
    "require_version",
    "set_flags",
    "switch_main_program",
    "switch_startup_program",
]
