"""Numbered checkpoints under a path, each with a parameter file and the training status."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from sparsefleet.errors import CheckpointError
from sparsefleet.fluid.io.file_systems import FS, LocalFS

__all__ = ["CheckPoints", "TrainStatus"]


class TrainStatus:
    """The training status: the last finished epoch, or -1 before the first epoch finishes.

    >>> TrainStatus(3).next()
    4
    """

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """Return the number of the epoch to resume with."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)

    def __repr__(self) -> str:
        return f"TrainStatus({self._epoch_no})"


PARAMETERS = "_paddle_fleet_param__"

_PREFIX = "__paddle_fleet_checkpoint__"

_STATUS = "fleet_train_status"


class CheckPoints:
    """The checkpoints under `path` in a file system; None means the local file system.

    >>> CheckPoints("/no/such/folder").last()
    -1
    """

    def __init__(self, path: str | os.PathLike[str], fs: FS | None = None) -> None:
        self._root = os.fspath(path)
        self._fs = LocalFS() if fs is None else fs

    def numbers(self) -> list[int]:
        """Return the numbers of the complete checkpoints, in order."""
        names = [name.rpartition(".") for name in self._fs.list_dirs(self._root)]
        return sorted(int(end) for prefix, _, end in names if prefix == _PREFIX and end.isdigit())

    def last(self) -> int:
        """Return the highest checkpoint number, or -1 if there are no checkpoints."""
        return max(self.numbers(), default=-1)

    def add(self, status: TrainStatus, save: Callable[[str], None], cache: str) -> int:
        """Add a checkpoint, which becomes visible once it is complete; return its number.

        save: writes the parameters into a folder. cache: a local folder for temporary files, used
            if `path` is remote.
        """
        fs, number = self._fs, self.last() + 1
        fs.mkdir(self._root)
        draft = f"{self._path(number)}.tmp"
        folder = f"{cache}/{_PREFIX}.{number}.saved_cache" if fs.need_upload_download() else draft
        LocalFS().delete(folder)
        os.makedirs(folder)
        save(folder)
        note = json.dumps({"epoch_no": status._epoch_no})
        (Path(folder) / _STATUS).write_text(note, encoding="utf-8")
        if fs.need_upload_download():
            fs.delete(draft)
            fs.upload(folder, draft)
            LocalFS().delete(folder)
        fs.mv(draft, self._path(number))
        return number

    def load(
        self, number: int, load: Callable[[str], None], cache: str, trainer_id: int
    ) -> TrainStatus:
        """Load a checkpoint; `load` reads the parameters from a folder."""
        folder = self._path(number)
        if self._fs.need_upload_download():
            near = f"{cache}/{_PREFIX}.{number}.load_cache.{trainer_id}"
            LocalFS().delete(near)
            os.makedirs(os.path.dirname(near), exist_ok=True)
            self._fs.download(folder, near)
            folder = near
        status = _status_in(Path(folder))
        load(folder)
        return status

    def keep(self, count: int) -> None:
        """Remove all but the last `count` checkpoints; at least one is kept."""
        for number in self.numbers()[: -max(count, 1)]:
            self._fs.delete(self._path(number))

    def _path(self, number: int) -> str:
        return f"{self._root}/{_PREFIX}.{number}"


def _status_in(folder: Path) -> TrainStatus:
    path = folder / _STATUS
    if not path.is_file():
        return TrainStatus()
    try:
        epoch = json.loads(path.read_text(encoding="utf-8"))["epoch_no"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f'{path}: expected JSON with an "epoch_no": {error}') from error
    if not isinstance(epoch, int) or epoch < 0:
        raise CheckpointError(f'{path}: "epoch_no" must be an int >= 0, got {epoch!r}')
    return TrainStatus(epoch)
