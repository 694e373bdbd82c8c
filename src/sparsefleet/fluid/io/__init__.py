"""Save and load variables and models; also readers and loaders under their Fluid names."""

from sparsefleet.fluid.unknown_names import known_names

_homes = {
    "BatchSampler": "sparsefleet.fluid.feeding.data_loader",
    "ComposeNotAligned": "sparsefleet.fluid.paddle.reader",
    "DataLoader": "sparsefleet.fluid.feeding.data_loader",
    "Dataset": "sparsefleet.fluid.feeding.data_loader",
    "PyReader": "sparsefleet.fluid.feeding.generator_loader",
    "batch": "sparsefleet.fluid.paddle.reader",
    "buffered": "sparsefleet.fluid.paddle.reader",
    "cache": "sparsefleet.fluid.paddle.reader",
    "chain": "sparsefleet.fluid.paddle.reader",
    "compose": "sparsefleet.fluid.paddle.reader",
    "default_collate_fn": "sparsefleet.fluid.feeding.data_loader",
    "firstn": "sparsefleet.fluid.paddle.reader",
    "get_parameter_value": "sparsefleet.fluid.io.program_state",
    "get_parameter_value_by_name": "sparsefleet.fluid.io.program_state",
    "get_program_parameter": "sparsefleet.fluid.io.program_state",
    "get_program_persistable_vars": "sparsefleet.fluid.io.program_state",
    "is_parameter": "sparsefleet.fluid.io.saving",
    "is_persistable": "sparsefleet.fluid.io.saving",
    "load": "sparsefleet.fluid.io.program_state",
    "load_inference_model": "sparsefleet.fluid.io.inference_model",
    "load_params": "sparsefleet.fluid.io.saving",
    "load_persistables": "sparsefleet.fluid.io.saving",
    "load_program_state": "sparsefleet.fluid.io.program_state",
    "load_vars": "sparsefleet.fluid.io.saving",
    "map_readers": "sparsefleet.fluid.paddle.reader",
    "multiprocess_reader": "sparsefleet.fluid.paddle.reader",
    "save": "sparsefleet.fluid.io.program_state",
    "save_inference_model": "sparsefleet.fluid.io.inference_model",
    "save_params": "sparsefleet.fluid.io.saving",
    "save_persistables": "sparsefleet.fluid.io.saving",
    "save_vars": "sparsefleet.fluid.io.saving",
    "set_program_state": "sparsefleet.fluid.io.program_state",
    "shuffle": "sparsefleet.fluid.paddle.reader",
    "xmap_readers": "sparsefleet.fluid.paddle.reader",
}

__getattr__ = known_names(__name__, "fluid.io", _homes)

__all__ = sorted(_homes)
