"""The owner of a folder of checkpoints: the job that writes there, and its generation."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparsefleet.checkpoint.folder import open_folder
from sparsefleet.checkpoint.json_fields import Fields, check, parse_object
from sparsefleet.errors import (
    CheckpointMismatchError,
    CheckpointMissingError,
    ConfigError,
    CorruptFileError,
)

__all__ = ["SeriesOwner"]

_FILE = "series.json"
_FORMAT = "sparsefleet-series"


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesOwner:
    """The training that writes checkpoints to a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     mine = SeriesOwner(job="train.py", model="0a1b").claim(directory)
    ...     found = SeriesOwner.of(directory)
    ...     found.job, found.generation
    ('train.py', 1)
    """

    job: str
    """The name of the job, for example its command line; "" if unknown."""

    model: str
    """A digest of the model's names and shapes."""

    generation: int = 1
    """Counts the trainings that started from scratch in this folder."""

    token: str = ""
    """Differs for each process that has claimed the folder."""

    @staticmethod
    def of(path: str, storage_options: Mapping[str, Any] | None = None) -> SeriesOwner | None:
        """Return the owner of a folder; None if nobody has claimed it."""
        folder = open_folder(path, storage_options)
        try:
            data = folder.read(_FILE)
        except CheckpointMissingError:
            return None
        try:
            fields = Fields(parse_object(data, "series"), "series")
            kind = fields.text("format")
            check(kind == _FORMAT, "series.format", repr(_FORMAT), kind)
            found = SeriesOwner(
                job=fields.text("job"),
                model=fields.text("model"),
                generation=fields.count("generation"),
                token=fields.text("token"),
            )
            fields.end()
        except ConfigError as error:
            raise CorruptFileError(f"{folder.locate(_FILE)}: {error}") from error
        return found

    def claim(self, path: str, storage_options: Mapping[str, Any] | None = None) -> SeriesOwner:
        """Write the owner of a folder, with a new token; return it."""
        mine = SeriesOwner(
            job=self.job, model=self.model, generation=self.generation, token=secrets.token_hex(8)
        )
        body = {
            "format": _FORMAT,
            "job": mine.job,
            "model": mine.model,
            "generation": mine.generation,
            "token": mine.token,
        }
        folder = open_folder(path, storage_options)
        data = (json.dumps(body, indent=1) + "\n").encode("ascii")
        folder.replace(_FILE, data, f"series-{mine.token}.json")
        return mine

    def is_job_of(self, other: SeriesOwner) -> bool:
        """Return whether both are the same job with the same model, as far as names are known."""
        knows_names = bool(self.job) and bool(other.job)
        return self.model == other.model and (not knows_names or self.job == other.job)

    def require_owns(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Raise CheckpointMismatchError if another process has claimed the folder since."""
        now = SeriesOwner.of(path, storage_options)
        if now is None or now.token != self.token:
            who = "nobody" if now is None else f"{now} (generation {now.generation})"
            raise CheckpointMismatchError(
                f"{path}: this training wrote its checkpoints here, and now the directory belongs "
                f"to {who}; give each job a directory of its own"
            )

    def __str__(self) -> str:
        return f"job '{self.job}'" if self.job else "a job without a name"
