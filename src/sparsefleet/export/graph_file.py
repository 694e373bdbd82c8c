"""A recorded graph as a `.pt2` file, written by torch.export and read without unpickling."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import torch
from safetensors.torch import save
from torch import fx
from torch.export import ExportedProgram

from sparsefleet.errors import CorruptFileError, ExportError
from sparsefleet.export.dense_shapes import MODEL_PREFIX
from sparsefleet.export.graph_archive import refuse_code
from sparsefleet.export.pending_export import PendingExport

__all__ = ["read_graph", "write_graph", "write_parameters"]


def write_graph(pending: PendingExport, program: ExportedProgram) -> str:
    """Writes the program with its parameters; the name of the file."""
    path = pending.path("graph", "pt2")
    examples, program.example_inputs = program.example_inputs, None
    try:
        raw = io.BytesIO()  # errors of the disk come as those of Python then
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about itself
            torch.export.save(program, raw)
        path.write_bytes(raw.getbuffer())
        refuse_code(path)
    except CorruptFileError as error:
        raise ExportError(
            f"torch {torch.__version__} cannot write this graph without pickled objects, which "
            f"are not read: {error}"
        ) from error
    finally:
        program.example_inputs = examples
    return pending.seal(path)


def write_parameters(pending: PendingExport, program: ExportedProgram) -> str:
    """Writes parameters and buffers under their names in the model; the name of the file."""
    path = pending.path("parameters", "safetensors")
    tensors = program.state_dict.items()
    # Tied parameters share memory, which this format does not allow.
    raw = save({name.removeprefix(MODEL_PREFIX): t.detach().clone() for name, t in tensors})
    path.write_bytes(raw)
    return pending.seal(path)


def read_graph(path: Path) -> fx.GraphModule:
    """The graph as a module of flat tensors. Lookups in it need rows at hand."""
    try:
        refuse_code(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.export.load(path)
    except (FileNotFoundError, CorruptFileError):
        raise
    except Exception as error:  # torch meets what it does not expect with whatever comes of it
        raise CorruptFileError(
            f"{path} is no graph that torch {torch.__version__} can read: {error}"
        ) from error
    module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    # A module of its own leaves the checks of torch behind: they refuse sizes of 0 and 1 where
    # the graph has no need to. Inputs are checked against the schema.
    return fx.GraphModule(module, module.graph)
