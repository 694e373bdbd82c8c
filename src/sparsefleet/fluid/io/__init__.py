"""Save and load variables and models; also readers and loaders under their Fluid names."""

from sparsefleet.fluid.paths import by_name, known_names

_homes = by_name(
    {
        "sparsefleet.fluid.feeding.data_loader": (
            "BatchSampler DataLoader Dataset default_collate_fn"
        ),
        "sparsefleet.fluid.feeding.generator_loader": "PyReader",
        "sparsefleet.fluid.io.inference_model": "load_inference_model save_inference_model",
        "sparsefleet.fluid.io.program_state": (
            "get_parameter_value get_parameter_value_by_name get_program_parameter "
            "get_program_persistable_vars load load_program_state save set_program_state"
        ),
        "sparsefleet.fluid.io.saving": (
            "is_parameter is_persistable load_params load_persistables load_vars save_params "
            "save_persistables save_vars"
        ),
        "sparsefleet.fluid.paddle.reader": (
            "ComposeNotAligned batch buffered cache chain compose firstn map_readers "
            "multiprocess_reader shuffle xmap_readers"
        ),
    }
)

__getattr__ = known_names(__name__, "fluid.io", _homes)

__all__ = sorted(_homes)
