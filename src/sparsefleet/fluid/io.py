"""Loaders and readers under the names that Fluid has for them."""

from sparsefleet.fluid.data_loader import DataLoader
from sparsefleet.fluid.inference_model import load_inference_model, save_inference_model
from sparsefleet.fluid.program_state import (
    get_program_parameter,
    get_program_persistable_vars,
    load,
    load_program_state,
    save,
    set_program_state,
)
from sparsefleet.fluid.py_reader import PyReader
from sparsefleet.fluid.saving import (
    is_parameter,
    is_persistable,
    load_params,
    load_persistables,
    load_vars,
    save_params,
    save_persistables,
    save_vars,
)
from sparsefleet.fluid.unknown_names import unknown_names
from sparsefleet.reader import (
    ComposeNotAligned,
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map_readers,
    multiprocess_reader,
    shuffle,
    xmap_readers,
)

__getattr__ = unknown_names("fluid.io")

__all__ = [
    "ComposeNotAligned",
    "DataLoader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_program_parameter",
    "get_program_persistable_vars",
    "is_parameter",
    "is_persistable",
    "load",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_program_state",
    "load_vars",
    "map_readers",
    "multiprocess_reader",
    "save",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "set_program_state",
    "shuffle",
    "xmap_readers",
]
