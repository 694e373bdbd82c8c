"""A recorded graph in a `.pt2` file, written by torch.export and read without unpickling.

Torch never opens the file. The file's entries are read once, checked, and copied to an in-memory
archive with nothing else in it, which torch reads. Torch's zip reader therefore cannot find a graph
in the file other than the graph that was checked.
"""

from __future__ import annotations

import io
import re
import sys
import warnings
from pathlib import Path

import torch
from safetensors.torch import save
from torch import fx
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

import sparsefleet.serving.export.look_up_op  # noqa: F401  registers the operator that graphs call
from sparsefleet.errors import CorruptFileError, ExportError
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.graph_json import Payload, plain_payloads, plain_program
from sparsefleet.serving.export.graph_operators import check_operators
from sparsefleet.serving.export.json_form import RefusedError
from sparsefleet.serving.export.keyed_rows import MODEL_PREFIX
from sparsefleet.serving.export.stored_zip import BadZipError, StoredZip, ZipWriter

__all__ = ["plain_archive", "read_graph", "write_graph", "write_parameters"]


def write_graph(pending: PendingExport, program: ExportedProgram) -> str:
    """Write the program with its parameters and return the file name."""
    path = pending.path("graph", "pt2")
    examples, program.example_inputs = program.example_inputs, None
    try:
        raw = io.BytesIO()  # so that Python raises disk errors
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings about itself
            torch.export.save(program, raw)
        path.write_bytes(raw.getbuffer())
        plain_archive(path)
    except CorruptFileError as error:
        raise ExportError(
            f"the graph that torch {torch.__version__} wrote could not be loaded again: {error}"
        ) from error
    finally:
        program.example_inputs = examples
    return pending.seal(path)


def write_parameters(pending: PendingExport, program: ExportedProgram) -> str:
    """Write parameters and buffers under their model names and return the file name."""
    path = pending.path("parameters", "safetensors")
    tensors = program.state_dict.items()
    # Tied parameters share memory, which this format does not allow.
    raw = save({name.removeprefix(MODEL_PREFIX): t.detach().clone() for name, t in tensors})
    path.write_bytes(raw)
    return pending.seal(path)


def read_graph(path: Path) -> fx.GraphModule:
    """Return the graph as a module of flat tensors. Calls must be made inside `looking_up`.

    The file may be untrusted; nothing in it is unpickled, imported or run. Needs memory for the
    parameters, plus a second copy of them until this function returns.
    """
    archive = plain_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = load_pt2(archive).exported_programs["model"]
            module = program.module(check_guards=False)
            # A separate module omits torch's checks, which reject sizes of 0 and 1 even where the
            # graph supports them. Inputs are checked against the schema.
            plain = fx.GraphModule(module, module.graph)
            check_operators(plain)
            return plain
    except Exception as error:  # torch may raise anything on unexpected input
        raise CorruptFileError(
            f"{path} contains no graph that torch {torch.__version__} can read: {error}"
        ) from error


_GRAPH = "models/model.json"
_EXAMPLES = "data/sample_inputs/model.pt"  # pickled, so it must be empty
_PAYLOADS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_TENSOR = re.compile(r"data/(weights|constants)/(weight|tensor)_\d+", re.ASCII)
_MARKS = {
    "archive_format": rb"pt2",
    "archive_version": rb"\d{1,3}",
    "byteorder": sys.byteorder.encode(),
    ".data/version": rb"\d{1,3}\n?",
}
"""Short files that identify the format to torch, with their required contents."""
_NOTES = {"version", ".data/serialization_id", ".format_version", ".storage_alignment"}
"""Files that torch may write but does not need to read."""

_ROOT = "archive/"
_MOST_JSON_BYTES = 256 << 20


def plain_archive(path: Path) -> io.BytesIO:
    """Return an archive that torch may read, rebuilt from the file.

    Raises CorruptFileError if torch would unpickle, load or run anything in the file, or if the
    file is not a plain archive as written by torch.export.save. Needs memory for one copy of the
    file's tensors.
    """
    try:
        with path.open("rb") as file:
            source = _Source(StoredZip(file))
            stream = io.BytesIO()
            with ZipWriter(stream) as target:
                _copy(source, target)
    except FileNotFoundError:
        raise
    except (BadZipError, RefusedError, OSError) as error:
        raise CorruptFileError(f"{path} cannot be read as a graph: {error}") from error
    stream.seek(0)
    return stream


class _Source:
    """The archive being read; all its entries are in one folder."""

    def __init__(self, archive: StoredZip) -> None:
        self._archive = archive
        names = archive.names
        self._root = names[0].partition("/")[0] + "/" if names else _ROOT
        for name in names:
            self._check_name(name)

    def _check_name(self, full: str) -> None:
        name = full.removeprefix(self._root)
        known = name in {_GRAPH, _EXAMPLES, *_PAYLOADS.values(), *_MARKS, *_NOTES}
        if not full.startswith(self._root) or not (known or _TENSOR.fullmatch(name)):
            raise RefusedError(f"the archive contains '{full:.200}', which may run code")
        if name == _EXAMPLES and self._archive.size(full):
            raise RefusedError(
                f"the archive contains '{full}' with pickled examples, which may run code"
            )

    def size(self, name: str) -> int:
        if self._root + name not in self._archive.names:
            raise RefusedError(f"the archive lacks '{name}'")
        return self._archive.size(self._root + name)

    def read(self, name: str) -> bytes:
        size = self.size(name)
        if size > _MOST_JSON_BYTES:
            raise RefusedError(
                f"'{name}' has {size:,} bytes, expected at most {_MOST_JSON_BYTES:,}"
            )
        return self._archive.read(self._root + name)

    def copy(self, name: str, target: ZipWriter) -> None:
        target.write(_ROOT + name, self.size(name), self._archive.chunks(self._root + name))


def _copy(source: _Source, target: ZipWriter) -> None:
    """Check the entries that torch needs and write them in the order that torch uses."""

    def write(name: str, raw: bytes) -> None:
        target.write(_ROOT + name, len(raw), iter((raw,)))

    for folder, config in _PAYLOADS.items():
        raw, files = plain_payloads(source.read(config))
        for file, payload in files.items():
            _check_payload(folder + file, source.size(folder + file), payload)
            source.copy(folder + file, target)
        write(config, raw)
    write(_GRAPH, plain_program(source.read(_GRAPH)))
    write(_EXAMPLES, b"")
    for name, wanted in _MARKS.items():
        raw = source.read(name)
        if not re.fullmatch(wanted, raw):
            raise RefusedError(f"'{name}' holds {raw!r:.80}, expected {wanted.decode()}")
        write(name, raw)


def _check_payload(name: str, size: int, needed: Payload) -> None:
    """Check that the file holds a whole number of elements, and enough for its tensors.

    Otherwise torch would fill missing data with arbitrary values.
    """
    held, rest = divmod(size, needed.element_bytes)
    if rest or held < needed.elements:
        raise RefusedError(
            f"'{name}' has {size:,} bytes, expected {needed.elements:,} numbers of "
            f"{needed.element_bytes} bytes"
        )
