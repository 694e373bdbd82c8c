"""Everything that sparsefleet raises on purpose, by cause.

One base, `SparseFleetError`; a class that says the same as a built-in exception is also that
one, so `except TimeoutError` works. All can be pickled, as they cross processes.
"""

from __future__ import annotations

__all__ = [
    "AuthError",
    "BadLineError",
    "CheckpointError",
    "ConfigError",
    "CorruptFileError",
    "DataError",
    "DeadlineError",
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
    "RpcError",
    "SchemaError",
    "ServerRestartedError",
    "ShapeError",
    "ShuttingDownError",
    "SparseFleetError",
    "TableConflictError",
    "TableError",
    "TooLargeError",
    "UnknownTableError",
    "VersionMismatchError",
    "WorkerError",
    "error_for",
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


# Numbers as in core/status/status.h.
_CLASS_BY_CODE: dict[int, type[SparseFleetError]] = {
    1: ConfigError,
    2: UnknownTableError,
    3: TableConflictError,
    4: ShapeError,
    5: NonFiniteError,
    6: DeadlineError,
    7: PeerLostError,
    8: AuthError,
    9: ProtocolError,
    10: VersionMismatchError,
    11: TooLargeError,
    12: NotFoundError,
    13: ShuttingDownError,
    14: ServerRestartedError,
    15: IoError,
    16: CorruptFileError,
    17: InternalError,
}


def error_for(code: int, message: str) -> SparseFleetError:
    """The exception for a native status; a code not listed becomes an `InternalError`."""
    found = _CLASS_BY_CODE.get(code)
    if found is None:
        return InternalError(f"native code {code}, unknown to this version: {message}")
    return found(message)
