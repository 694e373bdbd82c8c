"""A recorded graph in a `.pt2` file, written by torch.export and read without unpickling.

Torch never opens the file. The file's entries are read once, checked, and copied to an in-memory
archive with nothing else in it, which torch reads. Torch's zip reader therefore cannot find a graph
in the file other than the graph that was checked.
"""

from __future__ import annotations

import io
import os
import re
import struct
import sys
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from safetensors.torch import save
from torch import fx
from torch.export import ExportedProgram
from torch.export.pt2_archive._package import load_pt2

import sparsefleet.serving.export.recorded_graph  # noqa: F401  registers the operator that graphs call
from sparsefleet.errors import CorruptFileError, ExportError
from sparsefleet.serving.export.export_directory import PendingExport
from sparsefleet.serving.export.graph_json import Payload, plain_payloads, plain_program
from sparsefleet.serving.export.graph_operators import check_operators
from sparsefleet.serving.export.json_form import RefusedError
from sparsefleet.serving.export.keyed_rows import dense_tensors

__all__ = [
    "BadZipError",
    "StoredZip",
    "ZipWriter",
    "plain_archive",
    "read_graph",
    "write_graph",
    "write_parameters",
]

# Zip archives of uncompressed entries, read so strictly that every reader sees the same content.
#
# Two programs that read the same zip file may disagree about its content: one trusts the directory
# at the end, the other the offset in the end record; one takes the first of two entries with the
# same name, the other the last. Archives that allow such disagreement are rejected. Entries must
# follow one another from the first byte, without gaps, overlaps or duplicate names, and the local
# headers must match the directory.
#
# Format: PKWARE APPNOTE 6.3, sections 4.3 and 4.4.

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")

_IS_64 = 0xFFFFFFFF  # a 32-bit field with this value has its true value in a zip64 field
_IS_64_COUNT = 0xFFFF

_WIDE_FIELDS = ((_IS_64, 8), (_IS_64, 8), (_IS_64, 8), (_IS_64_COUNT, 4))

_STORED = 0
_HAS_DESCRIPTOR, _IS_UTF8 = 0x8, 0x800  # no other flags are accepted, such as encryption or patches
_ZIP64_EXTRA, _PADDING_EXTRA = 0x0001, 0x4246  # "FB", which torch uses to align its records

_MOST_DIRECTORY_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_ALIGNMENT = 64  # alignment of the data in torch's records


class BadZipError(ValueError):
    """Raised for an archive that is damaged or not in the plain form that this module reads."""


class _Entry(NamedTuple):
    """The directory's record of an entry. `data` is the file offset of the entry's content."""

    name: str
    flags: int
    crc: int
    size: int
    header: int
    data: int = 0


class StoredZip:
    """An archive open for reading. Content is read on request and checked by CRC-32.

    Raises BadZipError. Not thread-safe: all reads move the position of `file`.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._bytes = os.fstat(file.fileno()).st_size
        start, entries = self._read_directory()
        self._entries = {entry.name: entry for entry in self._located(start, entries)}

    @property
    def names(self) -> list[str]:
        """Return the names of all entries in storage order."""
        return list(self._entries)

    def size(self, name: str) -> int:
        """Return the number of bytes in an entry."""
        return self._entries[name].size

    def read(self, name: str) -> bytes:
        """Return the whole content of an entry."""
        return b"".join(self.chunks(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        """Yield an entry's content in chunks. After the last, raise if the checksum is wrong."""
        entry = self._entries[name]
        crc = 0
        for at in range(0, entry.size, _CHUNK_BYTES):
            piece = self._at(entry.data + at, min(_CHUNK_BYTES, entry.size - at))
            crc = zlib.crc32(piece, crc)
            yield piece
        if crc != entry.crc:
            raise BadZipError(f"'{name}' has the CRC-32 {crc:08x}, expected {entry.crc:08x}")

    def _at(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        found = self._file.read(size)
        if len(found) != size:
            raise BadZipError(
                f"the archive ends before byte {offset + size:,}, where data was expected"
            )
        return found

    def _read_directory(self) -> tuple[int, list[_Entry]]:
        """Return the start of the directory, and its entries in the order of their headers."""
        if self._bytes < _END.size:
            raise BadZipError(
                f"the file has {self._bytes:,} bytes, fewer than an empty zip archive"
            )
        end = self._bytes - _END.size
        found = _END.unpack(self._at(end, _END.size))
        mark, disk, first_disk, here, count, size, start, comment = found
        if mark != b"PK\5\6" or comment:
            raise BadZipError("the file does not end with the end record of a zip archive")
        if disk or first_disk or here != count:
            raise BadZipError("the file is one part of a multi-part zip archive")
        end, count, size, start = self._read_end64(end, count, size, start)
        if start + size != end:
            raise BadZipError(
                f"the directory is at bytes {start:,} to {start + size:,}, expected it to end at "
                f"byte {end:,}, before the end record"
            )
        if size > _MOST_DIRECTORY_BYTES:
            raise BadZipError(f"the directory has {size:,} bytes, which is too many")
        entries = list(_directory(self._at(start, size)))
        if len(entries) != count:
            raise BadZipError(f"the directory lists {len(entries):,} entries, expected {count:,}")
        return start, sorted(entries, key=lambda entry: entry.header)

    def _read_end64(self, end: int, count: int, size: int, start: int) -> tuple[int, int, int, int]:
        """Return the fields of the zip64 end record, or None if there is none."""
        locator = end - _END64_LOCATOR.size
        raw = self._at(locator, _END64_LOCATOR.size) if locator >= 0 else b""
        if not raw.startswith(b"PK\6\7"):
            if count == _IS_64_COUNT or _IS_64 in (size, start):
                raise BadZipError("the end record lacks the zip64 record that it refers to")
            return end, count, size, start
        _, disk, offset, disks = _END64_LOCATOR.unpack(raw)
        if disk or disks != 1 or offset != locator - _END64.size or offset < 0:
            raise BadZipError("the zip64 end record is not at the expected position")
        found = _END64.unpack(self._at(offset, _END64.size))
        mark, length, _, _, disk, first_disk, here, count64, size64, start64 = found
        if mark != b"PK\6\6" or length != _END64.size - 12 or disk or first_disk or here != count64:
            raise BadZipError("the zip64 end record is damaged")
        if (
            count not in (count64, _IS_64_COUNT)
            or size not in (size64, _IS_64)
            or start not in (start64, _IS_64)
        ):
            raise BadZipError("the two end records disagree")
        return offset, count64, size64, start64

    def _located(self, directory: int, entries: list[_Entry]) -> Iterator[_Entry]:
        """Yield the entries with their data offsets, checking that they end at the directory."""
        names: set[str] = set()
        expected = 0
        starts = [entry.header for entry in entries] + [directory]
        for entry, end in zip(entries, starts[1:], strict=True):
            if entry.name in names:
                raise BadZipError(f"the archive contains '{entry.name}' twice")
            names.add(entry.name)
            if entry.header != expected:
                raise BadZipError(
                    f"'{entry.name}' starts at byte {entry.header:,}, expected {expected:,}: "
                    "entries must neither overlap nor leave gaps"
                )
            data = self._check_local_header(entry)
            self._check_end(entry, data + entry.size, end)
            expected = end
            yield entry._replace(data=data)
        if expected != directory:
            raise BadZipError(f"{directory:,} bytes before the directory belong to no entry")

    def _check_local_header(self, entry: _Entry) -> int:
        """Check that the local header matches the directory, and return the start of the data."""
        found = _LOCAL.unpack(self._at(entry.header, _LOCAL.size))
        mark, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = found
        rest = self._at(entry.header + _LOCAL.size, name_bytes + extra_bytes)
        name, extra = rest[:name_bytes], rest[name_bytes:]
        if mark != b"PK\3\4" or flags != entry.flags or method != _STORED:
            raise BadZipError(f"'{entry.name}' has a damaged local header")
        if name != entry.name.encode():
            raise BadZipError(f"'{entry.name}' is called {name!r:.80} in its local header")
        # A writer that does not know these values yet leaves them to the data descriptor.
        if not (flags & _HAS_DESCRIPTOR and (crc, packed, size) == (0, 0, 0)):
            size, packed = _widened(entry.name, extra, [size, packed])
            if (crc, packed, size) != (entry.crc, entry.size, entry.size):
                raise BadZipError(
                    f"'{entry.name}' has a different size or CRC-32 in its local header"
                )
        data: int = entry.header + _LOCAL.size + name_bytes + extra_bytes
        return data

    def _check_end(self, entry: _Entry, data_end: int, end: int) -> None:
        """Check that only the data descriptor, if flagged, lies between `data_end` and `end`."""
        if not entry.flags & _HAS_DESCRIPTOR:
            wanted: tuple[bytes, ...] = (b"",)
        else:
            head = b"PK\7\x08" + entry.crc.to_bytes(4, "little")
            wanted = tuple(
                head + 2 * entry.size.to_bytes(width, "little")
                for width in (4, 8)
                if entry.size < 1 << 8 * width
            )
        gap = end - data_end
        if gap not in map(len, wanted) or self._at(data_end, gap) not in wanted:
            raise BadZipError(
                f"'{entry.name}' has {entry.size:,} bytes, which end at byte {data_end:,}; the "
                f"bytes from there to byte {end:,} do not belong to it"
            )


def _directory(raw: bytes) -> Iterator[_Entry]:
    at = 0
    while at < len(raw):
        if len(raw) - at < _CENTRAL.size:
            raise BadZipError("the directory ends within an entry")
        found = _CENTRAL.unpack_from(raw, at)
        mark, _, _, flags, method, _, _, crc, packed, size = found[:10]
        name_bytes, extra_bytes, comment_bytes, disk, _, attributes, header = found[10:]
        end = at + _CENTRAL.size + name_bytes + extra_bytes
        text, extra = raw[at + _CENTRAL.size : end - extra_bytes], raw[end - extra_bytes : end]
        at = end
        if mark != b"PK\1\2" or end > len(raw):
            raise BadZipError("the directory is damaged")
        try:
            name = text.decode("ascii")
        except UnicodeDecodeError as error:
            raise BadZipError(
                f"the archive contains an entry with the invalid name {text!r:.80}"
            ) from error
        if method != _STORED:
            raise BadZipError(f"'{name}' is compressed; only uncompressed entries are read")
        if flags & ~(_HAS_DESCRIPTOR | _IS_UTF8):
            raise BadZipError(f"'{name}' is encrypted or has unknown flags ({flags:#x})")
        if (attributes >> 16) & 0o170000 not in (0, 0o100000):
            raise BadZipError(f"'{name}' is a link or a special file")
        size, packed, header, disk = _widened(name, extra, [size, packed, header, disk])
        if packed != size or disk or comment_bytes:
            raise BadZipError(f"'{name}' has a damaged entry in the directory")
        yield _Entry(name, flags, crc, size, header)


def _widened(name: str, extra: bytes, fields: list[int]) -> list[int]:
    """Return the size, packed size, offset and disk, taking overflowed fields from zip64 data."""
    wide: bytes | None = None
    while extra:
        kind, length = struct.unpack_from("<2H", extra) if len(extra) >= 4 else (0, 0)
        content, extra = extra[4 : 4 + length], extra[4 + length :]
        known = kind == _PADDING_EXTRA or (kind == _ZIP64_EXTRA and wide is None)
        if not known or len(content) != length:
            raise BadZipError(f"'{name}' has an unknown or damaged extra field")
        wide = content if kind == _ZIP64_EXTRA else wide
    found, rest = [], wide or b""
    for value, (mark, width) in zip(fields, _WIDE_FIELDS, strict=False):
        if value == mark:
            if len(rest) < width:
                raise BadZipError(f"'{name}' lacks the zip64 field that it refers to")
            value, rest = int.from_bytes(rest[:width], "little"), rest[width:]
        found.append(value)
    if rest:
        raise BadZipError(f"'{name}' has a zip64 field that its header does not refer to")
    return found


class ZipWriter:
    """Writes a plain archive in torch's layout: uncompressed entries with aligned data."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._archive = zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED)

    def __enter__(self) -> ZipWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()

    def write(self, name: str, size: int, chunks: Iterator[bytes]) -> None:
        """Add an entry of `size` bytes, whose content is given in chunks."""
        entry = zipfile.ZipInfo(name)
        entry.file_size = size
        data = self._stream.tell() + _LOCAL.size + len(name.encode()) + 4
        entry.extra = struct.pack("<2H", _PADDING_EXTRA, -data % _ALIGNMENT)
        entry.extra += b"Z" * (-data % _ALIGNMENT)
        with self._archive.open(entry, "w") as target:
            for piece in chunks:
                target.write(piece)


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
    """Write parameters and persistent buffers under their model names and return the file name."""
    path = pending.path("parameters", "safetensors")
    # Tied parameters share memory, which this format does not allow.
    raw = save({name: t.detach().clone() for name, t in dense_tensors(program.state_dict).items()})
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
