"""What a format of files is to a reader."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sparsefleet.data.progress import FileToRead
from sparsefleet.data.reader_config import ReaderConfig
from sparsefleet.data.record_source import FilePart, RecordSource, SourceContext
from sparsefleet.data.slot import Slot
from sparsefleet.errors import ConfigError


class RecordFormat(ABC):
    """How files become records. Thread-safe: holds no state of a pass."""

    __slots__ = ()

    splits_files: bool = False
    """Whether threads may share a file."""

    unnamed_input: str | None = None
    """What to call the input of a reader without files; None: it needs files."""

    @property
    @abstractmethod
    def columns(self) -> tuple[Slot, ...]:
        """The columns of a batch, in order."""

    @abstractmethod
    def open_source(self, context: SourceContext) -> RecordSource:
        """What one thread reads with."""

    @abstractmethod
    def check_config(self, config: ReaderConfig, files: list[str]) -> None:
        """Raises ConfigError if such files cannot be read so."""

    def split(self, file: FileToRead, config: ReaderConfig) -> list[FilePart]:  # noqa: ARG002
        """What of the file is left to read, in parts that each go to one thread."""
        if not file.done:
            return [FilePart(file.path)]
        (begin, end), *more = file.done
        if begin != 0 or more:
            raise ConfigError(
                f"{file.path}: the state was saved by a reader of another format: it has parts of "
                "the file, this format reads files from their beginning"
            )
        return [FilePart(file.path, end)]
