"""The exceptions that sparsefleet raises on purpose, by cause.

The base class is `SparseFleetError`. A class that means the same as a built-in exception also
derives from that exception, so `except TimeoutError` works. All exceptions can be pickled, because
they cross processes.
"""

from __future__ import annotations

__all__ = [
    "AnswerLostError",
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
    "DiskFullError",
    "ExportError",
    "FeedError",
    "InputFileError",
    "InputMissingError",
    "InternalError",
    "IoError",
    "NonFiniteError",
    "NonFiniteLossError",
    "NotFoundError",
    "NotOwnerError",
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
    "error_named",
]


class SparseFleetError(Exception):
    """The base class of all errors in this package."""


class ConfigError(SparseFleetError, ValueError):
    """An invalid setting or argument.

    The message contains the name of the setting, its value and what was expected.
    """


class TableError(SparseFleetError):
    """A request that does not match the table it is for."""


class UnknownTableError(TableError):
    """No table with that name is defined."""


class TableConflictError(TableError):
    """A table with that name exists with a different spec."""


class ShapeError(TableError, ValueError):
    """A wrong width, or keys and values of different lengths."""


class NonFiniteError(TableError, ValueError):
    """NaN or infinity in a gradient for a table whose policy is to raise. Nothing was applied."""


class NonFiniteLossError(SparseFleetError, ArithmeticError):
    """The training loss is NaN or infinite and the policy is to stop."""


class NotFoundError(SparseFleetError, LookupError):
    """The requested note, snapshot or file does not exist."""


class RpcError(SparseFleetError):
    """A failed call to a server."""


class DeadlineError(RpcError, TimeoutError):
    """The deadline expired before the call completed."""


class PeerLostError(RpcError, ConnectionError):
    """The peer is gone or unresponsive; the message names the peer."""


class AnswerLostError(RpcError):
    """The request was applied, but its reply was lost: do not send it again."""


class NotOwnerError(RpcError):
    """The rank, mailbox or file list belongs to a different client, which is still alive."""


class AuthError(RpcError):
    """The peer failed to authenticate: the two sides have different job keys."""


class ProtocolError(RpcError):
    """The bytes received are not a valid message."""


class VersionMismatchError(ProtocolError):
    """The peer speaks a different protocol version."""


class TooLargeError(RpcError):
    """A message exceeds the limit of the side that reports it."""


class ShuttingDownError(RpcError):
    """The server is shutting down and accepts no more work."""


class ServerRestartedError(RpcError):
    """The server restarted without its tables: define and load them again."""


class CheckpointError(SparseFleetError):
    """Saved tables cannot be written or read."""


class CorruptFileError(CheckpointError):
    """A file has a wrong checksum or structure."""


class CheckpointMissingError(CheckpointError, FileNotFoundError):
    """There is no checkpoint at that path, or one of its files is missing."""


class CheckpointMismatchError(CheckpointError):
    """A valid checkpoint of a different model: its tables, widths, optimizers or shapes differ."""


class CheckpointVersionError(CheckpointError):
    """The checkpoint's format is newer than this version of sparsefleet."""


class CheckpointIoError(CheckpointError, OSError):
    """The file system failed, for example because of missing space, permissions or connection."""


class ExportError(SparseFleetError):
    """The model cannot be exported."""


class FeedError(SparseFleetError, ValueError):
    """Inputs that an exported model does not accept. The message says what was found and what was
    expected.
    """


class StoreUnavailableError(SparseFleetError, ConnectionError):
    """The rows of a served model are unavailable: their store is down, slow or still empty."""


class PublishError(SparseFleetError):
    """Updates to a served model cannot be published."""


class IoError(SparseFleetError, OSError):
    """A system call on a file or socket failed."""


class DiskFullError(IoError):
    """A server has no disk space left for its log. Nothing was changed; the message names the
    directory.
    """


class DataError(SparseFleetError):
    """Training data cannot be read."""


class BadLineError(DataError, ValueError):
    """A malformed line. The message names the file, line and column, and says what was expected."""


class InputFileError(DataError, OSError):
    """An input file cannot be opened, is truncated, or does not have the format its name
    implies.
    """


class InputMissingError(InputFileError, FileNotFoundError):
    """No file matches the given name or pattern."""


class SchemaError(DataError, ValueError):
    """A required column is missing or has the wrong type; the message names column and slot."""


class PipeCommandError(DataError):
    """A pipe command failed, hung or could not be started; the message includes its output."""


class InternalError(SparseFleetError, RuntimeError):
    """A bug in sparsefleet itself; please report it."""


class WorkerError(SparseFleetError):
    """One or more workers failed, each with its cause.

    >>> error = WorkerError({1: ValueError("bad batch")})
    >>> str(error)
    "1 worker failed: worker 1: ValueError('bad batch')"
    """

    def __init__(self, failures: dict[int, BaseException]) -> None:
        super().__init__(failures)
        self.failures = dict(sorted(failures.items()))
        """The exception raised by each worker, by rank."""

    def __str__(self) -> str:
        noun = "worker" if len(self.failures) == 1 else "workers"
        causes = "; ".join(f"worker {rank}: {cause!r}" for rank, cause in self.failures.items())
        return f"{len(self.failures)} {noun} failed: {causes}"


# Keyed by the names of the native codes in core/status/status.h.
_CLASS_BY_NAME: dict[str, type[SparseFleetError]] = {
    "INVALID_ARGUMENT": ConfigError,
    "UNKNOWN_TABLE": UnknownTableError,
    "TABLE_CONFLICT": TableConflictError,
    "SHAPE_MISMATCH": ShapeError,
    "NON_FINITE": NonFiniteError,
    "DEADLINE_EXCEEDED": DeadlineError,
    "PEER_LOST": PeerLostError,
    "AUTH_FAILED": AuthError,
    "PROTOCOL": ProtocolError,
    "VERSION_MISMATCH": VersionMismatchError,
    "TOO_LARGE": TooLargeError,
    "NOT_FOUND": NotFoundError,
    "SHUTTING_DOWN": ShuttingDownError,
    "SERVER_RESTARTED": ServerRestartedError,
    "IO": IoError,
    "CORRUPT": CorruptFileError,
    "INTERNAL": InternalError,
    "CHECKPOINT": CheckpointError,
    "NOT_OWNER": NotOwnerError,
    "ANSWER_LOST": AnswerLostError,
    "DISK_FULL": DiskFullError,
}
_NAME_BY_CLASS: dict[type, str] = {
    **{kind: name for name, kind in _CLASS_BY_NAME.items()},
    FileNotFoundError: "NOT_FOUND",
    OSError: "IO",
}


def error_named(name: str, message: str) -> SparseFleetError:
    """Return the exception for an error code of the native core; `InternalError` if it is unknown.

    >>> type(error_named("SHAPE_MISMATCH", "3 rows, wanted 4")).__name__
    'ShapeError'
    """
    if name.startswith("CODE_"):  # a code that this version has no name for
        return InternalError(f"native error {name}, unknown to this version: {message}")
    return _CLASS_BY_NAME.get(name, InternalError)(message)


def code_name_of(error: BaseException) -> str | None:
    """Return the code by which ``error``, or its nearest base class, is sent to another process.

    Return None for an exception that has no code because it was not raised on purpose.

    >>> code_name_of(ShapeError("3 rows, wanted 4")), code_name_of(ZeroDivisionError())
    ('SHAPE_MISMATCH', None)
    """
    names = (_NAME_BY_CLASS.get(kind) for kind in type(error).__mro__)
    return next((name for name in names if name is not None), None)
