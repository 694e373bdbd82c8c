"""Everything that sparsefleet raises on purpose, by cause.

One base, `SparseFleetError`; a class that says the same as a built-in exception is also that
one, so `except TimeoutError` works. All can be pickled, as they cross processes.
"""

from __future__ import annotations

__all__ = [
    "AuthError",
    "BadLineError",
    "CheckpointError",
    "CheckpointIoError",
    "CheckpointMismatchError",
    "CheckpointMissingError",
    "CheckpointVersionError",
    "ConfigError",
    "CorruptFileError",
    "DataError",
    "DeadlineError",
    "ExportError",
    "FeedError",
    "InputFileError",
    "InputMissingError",
    "InternalError",
    "IoError",
    "NonFiniteError",
    "NonFiniteLossError",
    "NotFoundError",
    "PeerLostError",
    "PipeCommandError",
    "ProtocolError",
    "PublishError",
    "RpcError",
    "SchemaError",
    "ServerRestartedError",
    "ShapeError",
    "ShuttingDownError",
    "SparseFleetError",
    "StoreUnavailableError",
    "TableConflictError",
    "TableError",
    "TooLargeError",
    "UnknownTableError",
    "VersionMismatchError",
    "WorkerError",
    "code_name_of",
    "error_for",
    "error_named",
]


class SparseFleetError(Exception):
    """Base of all errors of this package."""


class ConfigError(SparseFleetError, ValueError):
    """A setting or argument that cannot be meant; the message names it, found and wanted."""


class TableError(SparseFleetError):
    """A request that does not fit the table it is for."""


class UnknownTableError(TableError):
    """No table of that name has been defined."""


class TableConflictError(TableError):
    """A table of that name exists with another spec."""


class ShapeError(TableError, ValueError):
    """Wrong width, or keys and values of different length."""


class NonFiniteError(TableError, ValueError):
    """NaN or infinity in a gradient, in a table whose policy is to raise. Nothing was applied."""


class NonFiniteLossError(SparseFleetError, ArithmeticError):
    """A training loss that is NaN or infinite, where the policy is to stop."""


class NotFoundError(SparseFleetError, LookupError):
    """No such note, cut or file."""


class RpcError(SparseFleetError):
    """A call to a server that did not come off."""


class DeadlineError(RpcError, TimeoutError):
    """The wait ended before the event."""


class PeerLostError(RpcError, ConnectionError):
    """The other side is gone or silent; the message names it."""


class AuthError(RpcError):
    """The job key was not proven: the two sides hold different keys."""


class ProtocolError(RpcError):
    """Bytes that are not a legal message."""


class VersionMismatchError(ProtocolError):
    """The peer speaks another version of the protocol."""


class TooLargeError(RpcError):
    """A message over the limit of the side that reports it."""


class ShuttingDownError(RpcError):
    """The server drains and takes no more work."""


class ServerRestartedError(RpcError):
    """The server came back without the tables it had: define and load them again."""


class CheckpointError(SparseFleetError):
    """Saved tables that cannot be written or read."""


class CorruptFileError(CheckpointError):
    """A file whose checksum or structure is wrong."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """No checkpoint at that path, or one of its files is gone."""


class CheckpointMismatchError(CheckpointError):
    """A whole checkpoint, but of another model: another table, width, optimizer or shape."""


class CheckpointVersionError(CheckpointError):
    """A checkpoint in a format that is newer than this version of sparsefleet."""


class CheckpointIoError(CheckpointError, OSError):
    """The file system refused: no space left, no permission, no connection."""


class ExportError(SparseFleetError):
    """A model that cannot be turned into files that predict."""


class FeedError(SparseFleetError, ValueError):
    """Inputs that an exported model does not take; the message has what was given and wanted."""


class StoreUnavailableError(SparseFleetError, ConnectionError):
    """Rows of a served model cannot be had now: their store is away, slow or not filled."""


class PublishError(SparseFleetError):
    """Updates of a served model that cannot be published."""


class IoError(SparseFleetError, OSError):
    """A system call on a file or socket failed."""


class DataError(SparseFleetError):
    """Training data that cannot be read."""


class BadLineError(DataError, ValueError):
    """A malformed line; the message names file, line, column, what was expected and found."""


class InputFileError(DataError, OSError):
    """An input file that cannot be opened, ends too early or is not what its name says."""


class InputMissingError(InputFileError, FileNotFoundError):
    """No file of that name, or none that fits the pattern."""


class SchemaError(DataError, ValueError):
    """A file without a column that is wanted, or with one of another type; both are named."""


class PipeCommandError(DataError):
    """A pipe command that failed, hung or could not be started, with what it said."""


class InternalError(SparseFleetError, RuntimeError):
    """A defect in sparsefleet itself; please report it."""


class WorkerError(SparseFleetError):
    """Workers that failed, each with its cause.

    >>> error = WorkerError({1: ValueError("bad batch")})
    >>> str(error)
    "1 worker failed: worker 1: ValueError('bad batch')"
    """

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__(failures)
        self.failures = dict(sorted(failures.items()))
        """Rank of the worker -> what it raised."""

    def __str__(self) -> str:
        noun = "worker" if len(self.failures) == 1 else "workers"
        causes = "; ".join(f"worker {rank}: {cause!r}" for rank, cause in self.failures.items())
        return f"{len(self.failures)} {noun} failed: {causes}"


# Number, name and class, as in core/status/status.h.
_CODES: tuple[tuple[int, str, type[SparseFleetError]], ...] = (
    (1, "INVALID_ARGUMENT", ConfigError),
    (2, "UNKNOWN_TABLE", UnknownTableError),
    (3, "TABLE_CONFLICT", TableConflictError),
    (4, "SHAPE_MISMATCH", ShapeError),
    (5, "NON_FINITE", NonFiniteError),
    (6, "DEADLINE_EXCEEDED", DeadlineError),
    (7, "PEER_LOST", PeerLostError),
    (8, "AUTH_FAILED", AuthError),
    (9, "PROTOCOL", ProtocolError),
    (10, "VERSION_MISMATCH", VersionMismatchError),
    (11, "TOO_LARGE", TooLargeError),
    (12, "NOT_FOUND", NotFoundError),
    (13, "SHUTTING_DOWN", ShuttingDownError),
    (14, "SERVER_RESTARTED", ServerRestartedError),
    (15, "IO", IoError),
    (16, "CORRUPT", CorruptFileError),
    (17, "INTERNAL", InternalError),
    (18, "CHECKPOINT", CheckpointError),
)
_CLASS_BY_CODE = {number: kind for number, _, kind in _CODES}
_NAME_BY_CLASS: dict[type, str] = {
    **{kind: name for _, name, kind in _CODES},
    FileNotFoundError: "NOT_FOUND",
    OSError: "IO",
}


def error_for(code: int, message: str) -> SparseFleetError:
    """The exception for a native status; a code not listed becomes an `InternalError`."""
    found = _CLASS_BY_CODE.get(code)
    if found is None:
        return InternalError(f"native code {code}, unknown to this version: {message}")
    return found(message)


def error_named(name: str, message: str) -> SparseFleetError:
    """The exception for a code of that name, as `code_name_of` gives it.

    >>> type(error_named("SHAPE_MISMATCH", "3 rows, wanted 4")).__name__
    'ShapeError'
    """
    kinds = {known: kind for _, known, kind in _CODES}
    return kinds.get(name, InternalError)(message)


def code_name_of(error: BaseException) -> str | None:
    """The code that takes ``error`` to another process as its class, or as the nearest base of it.

    None for what has no code: an exception that nobody raised on purpose.

    >>> code_name_of(ShapeError("3 rows, wanted 4")), code_name_of(ZeroDivisionError())
    ('SHAPE_MISMATCH', None)
    """
    names = (_NAME_BY_CLASS.get(kind) for kind in type(error).__mro__)
    return next((name for name in names if name is not None), None)
