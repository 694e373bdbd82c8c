"""File systems for checkpoints, under Fluid's names: local folders, or HDFS through hadoop."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparsefleet.data.file_list import split_files
from sparsefleet.errors import ConfigError

__all__ = [
    "BDFS",
    "FS",
    "FleetHDFSClient",
    "HDFSClient",
    "HadoopClient",
    "LocalFS",
    "multi_download",
    "multi_upload",
]


_TIMEOUT_S = 3600.0  # time limit for one command, since files are large

_FIELDS_OF_LS = 8

_COMMAND_NOT_FOUND = 127

_log = logging.getLogger("sparsefleet.fluid")

Item = TypeVar("Item")


class HadoopClient:
    """Runs `hadoop fs`, with retries.

    hadoop_home: folder with bin/hadoop; None means the command on the PATH.
    configs: passed to each command as -D, such as fs.default.name and hadoop.job.ugi.
    """

    def __init__(self, hadoop_home: str | None, configs: Mapping[str, str]) -> None:
        command = "hadoop" if hadoop_home is None else os.path.join(hadoop_home, "bin", "hadoop")
        self._words = [command, "fs"]
        for name, value in (configs or {}).items():
            self._words.append(f"-D{name}={value}")

    def is_exist(self, hdfs_path: str | None = None) -> bool:
        return self._succeeds(["-test", "-e", self._given(hdfs_path)], 1)

    def is_dir(self, hdfs_path: str | None = None) -> bool:
        return self._succeeds(["-test", "-d", self._given(hdfs_path)], 1)

    def is_file(self, hdfs_path: str | None = None) -> bool:
        return self.is_exist(hdfs_path) and not self.is_dir(hdfs_path)

    def cat(self, hdfs_path: str | None = None) -> str:
        """Return the contents of a file, or an empty string if the file does not exist."""
        path = self._given(hdfs_path)
        return self._run(["-cat", path], 5)[1].rstrip("\n") if self.is_file(path) else ""

    def ls(self, hdfs_path: str) -> list[str]:
        """Return the paths in a folder, or [] if the folder does not exist."""
        return [line[-1] for line in self._lines(["-ls", hdfs_path])]

    def makedirs(self, hdfs_path: str) -> bool:
        return self.is_dir(hdfs_path) or self._succeeds(["-mkdir", "-p", hdfs_path], 3)

    def delete(self, hdfs_path: str) -> bool:
        """Delete a file or a whole folder. Also returns True if there was nothing to delete."""
        if not self.is_exist(hdfs_path):
            return True
        words = ["-rm", "-r", hdfs_path] if self.is_dir(hdfs_path) else ["-rm", hdfs_path]
        return self._succeeds(words, 3)

    def rename(self, hdfs_src_path: str, hdfs_dst_path: str, overwrite: bool = False) -> bool:
        if overwrite and self.is_exist(hdfs_dst_path):
            self.delete(hdfs_dst_path)
        return self._succeeds(["-mv", hdfs_src_path, hdfs_dst_path], 3)

    @staticmethod
    def make_local_dirs(local_path: str) -> None:
        os.makedirs(local_path, exist_ok=True)

    # -- for the clients ------------------------------------------------------------------------

    def _put(self, local_path: str, hdfs_path: str, overwrite: bool, retry_times: int) -> bool:
        if not os.path.exists(local_path):
            raise ConfigError(f"cannot upload {local_path}: no such file or folder")
        if overwrite:
            self.delete(hdfs_path)
        return self._succeeds(["-put", local_path, hdfs_path], retry_times)

    def _get(self, hdfs_path: str, local_path: str, overwrite: bool, retry_times: int) -> bool:
        target = local_path
        if os.path.isdir(local_path):
            target = os.path.join(local_path, os.path.basename(hdfs_path))
        if overwrite and os.path.isfile(target):
            os.remove(target)
        return self._succeeds(["-get", hdfs_path, local_path], retry_times)

    def _found_below(self, hdfs_path: str) -> list[tuple[str, str, bool]]:
        """Return the path and time of each entry under a path, and whether it is a folder."""
        lines = self._lines(["-ls", "-R", hdfs_path])
        return [(line[-1], f"{line[5]} {line[6]}", line[0].startswith("d")) for line in lines]

    def _lines(self, words: Sequence[str]) -> list[list[str]]:
        if not self.is_exist(words[-1]):
            return []
        lines = [line.split() for line in self._run(words, 10)[1].splitlines()]
        return [line for line in lines if len(line) >= _FIELDS_OF_LS]

    def _succeeds(self, words: Sequence[str], tries: int) -> bool:
        return self._run(words, tries)[0] == 0

    def _run(self, words: Sequence[str], tries: int) -> tuple[int, str]:
        """Run a hadoop command; return its exit code and output."""
        code, printed = 0, ""
        for number in range(max(tries, 1)):
            try:
                done = subprocess.run(
                    [*self._words, *words],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT_S,
                    check=False,
                )
            except OSError as error:  # the code that a shell reports; retrying would not help
                _log.warning("%s fs %s: %s", self._words[0], " ".join(words), error)
                return _COMMAND_NOT_FOUND, ""
            code, printed = done.returncode, done.stdout
            if code == 0:
                break
            if words[0] != "-test":
                _log.warning(
                    "hadoop fs %s: exit code %d in attempt %d of %d: %s",
                    " ".join(words),
                    code,
                    number + 1,
                    tries,
                    done.stderr.strip(),
                )
        return code, printed

    def _given(self, path: str | None) -> str:
        if not path:
            raise ConfigError(f"expected an HDFS path, got {path!r}")
        return path


def in_parallel(work: Callable[[Item], bool], items: Sequence[Item], at_a_time: int) -> bool:
    """Call `work` for all items; return whether all calls succeeded.

    Runs them in threads, since each waits for a command.
    """
    with ThreadPoolExecutor(max(at_a_time, 1)) as pool:
        return all(list(pool.map(work, items)))


class HDFSClient(HadoopClient):
    """Accesses HDFS through the hadoop command, one file at a time."""

    def upload(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5
    ) -> bool:
        """Upload a local file or folder."""
        return self._put(local_path, hdfs_path, overwrite, retry_times)

    def download(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, unzip: bool = False
    ) -> bool:
        """Download a file or folder to a local path."""
        del unzip  # has no effect in Fluid either
        return self._get(hdfs_path, local_path, overwrite, 5)

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """Return the paths of all entries under a folder.

        With `sort`, they are ordered from oldest to newest.
        """
        found = [one for one in self._found_below(hdfs_path) if not (only_file and one[2])]
        if sort:
            found.sort(key=lambda one: one[1])
        return [path for path, _, _ in found]


def multi_download(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    trainer_id: int,
    trainers: int,
    multi_processes: int = 5,
) -> list[str]:
    """Download every `trainers`-th file under a folder, from `trainer_id` on; return the paths."""
    client.make_local_dirs(local_path)
    files = client.lsr(hdfs_path, sort=True)[trainer_id::trainers]
    places = {path: os.path.join(local_path, os.path.relpath(path, hdfs_path)) for path in files}
    for place in places.values():
        client.make_local_dirs(os.path.dirname(place))
    if not in_parallel(lambda path: client.download(path, places[path]), files, multi_processes):
        raise OSError(f"not all files in {hdfs_path} could be downloaded; see the warnings above")
    return list(places.values())


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """Upload all files under a local folder to the same relative paths in HDFS."""
    del sync  # the call returns when all are uploaded
    files = [os.path.join(top, name) for top, _, names in os.walk(local_path) for name in names]

    def upload(path: str) -> bool:
        target = os.path.join(hdfs_path, os.path.relpath(path, local_path))
        client.makedirs(os.path.dirname(target))
        return client.upload(target, path, overwrite)

    if not in_parallel(upload, files, multi_processes):
        raise OSError(f"not all files in {local_path} could be uploaded; see the warnings above")


class FleetHDFSClient(HadoopClient):
    """Accesses HDFS through the hadoop command, several files in parallel.

    >>> client = FleetHDFSClient("/opt/hadoop", {"fs.default.name": "hdfs://a:54310"})
    >>> client.split_files(["a", "b", "c"], trainer_id=1, trainers=2)
    ['c']
    """

    def lsr(self, hdfs_path: str, excludes: Sequence[str] = ()) -> list[str]:
        """Return the files under a folder, except files whose names are in `excludes`."""
        found = [path for path, _, is_folder in self._found_below(hdfs_path) if not is_folder]
        return [path for path in found if os.path.basename(path) not in excludes]

    @staticmethod
    def split_files(files: list[str], trainer_id: int, trainers: int) -> list[str]:
        """Return one worker's files; see `fleet.split_files`."""
        return split_files(files, trainer_id, trainers)

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Download a file or a folder's files; return whether all succeeded."""
        self.make_local_dirs(local_path)
        files = self.ls(hdfs_path) if self.is_dir(hdfs_path) else [hdfs_path]
        return in_parallel(
            lambda path: self._get(path, local_path, overwrite, retry_times), files, multi_processes
        )

    def upload(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """Upload a local file or a folder's files to HDFS; return whether all succeeded."""
        files = [local_path]
        if os.path.isdir(local_path):
            files = sorted(os.path.join(local_path, name) for name in os.listdir(local_path))
        self.makedirs(hdfs_path)

        def put(path: str) -> bool:
            target = f"{hdfs_path.rstrip('/')}/{os.path.basename(path)}"
            return self._put(path, target, overwrite, retry_times)

        return in_parallel(put, files, multi_processes)

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """Upload a whole folder into another folder."""
        local = local_dir.rstrip("/")
        target = f"{dest_dir.rstrip('/')}/{os.path.basename(local)}"
        return self._put(local, target, overwrite, retry_times=5)


class FS(ABC):
    """A file system."""

    @abstractmethod
    def list_dirs(self, fs_path: str) -> list[str]:
        """Return the names of the subfolders in a folder, or [] if the folder does not exist."""

    @abstractmethod
    def stat(self, fs_path: str) -> bool:
        """Return whether a file or folder exists."""

    @abstractmethod
    def mkdir(self, fs_path: str) -> None:
        """Create a folder and its parents if they do not exist."""

    @abstractmethod
    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        """Rename a file or folder."""

    @abstractmethod
    def delete(self, fs_path: str) -> None:
        """Remove a file or a whole folder, if it exists."""

    def rm(self, fs_path: str) -> None:
        """Remove a file or a whole folder; see `delete`."""
        self.delete(fs_path)

    def rmr(self, fs_path: str) -> None:
        """Remove a file or a whole folder; see `delete`."""
        self.delete(fs_path)

    @abstractmethod
    def need_upload_download(self) -> bool:
        """Return whether files must be written locally first and then uploaded."""

    @abstractmethod
    def upload(self, local_path: str, fs_path: str) -> None:
        """Upload a local folder."""

    @abstractmethod
    def download(self, fs_path: str, local_path: str) -> None:
        """Download a folder."""


class LocalFS(FS):
    """The local file system.

    >>> LocalFS().list_dirs("/no/such/folder")
    []
    """

    def list_dirs(self, fs_path: str) -> list[str]:
        if not os.path.isdir(fs_path):
            return []
        return [entry.name for entry in os.scandir(fs_path) if entry.is_dir()]

    def ls_dir(self, fs_path: str) -> list[str]:
        """Return the names of all entries in a folder."""
        return os.listdir(fs_path)

    def stat(self, fs_path: str) -> bool:
        return os.path.exists(fs_path)

    def mkdir(self, fs_path: str) -> None:
        os.makedirs(fs_path, exist_ok=True)

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        os.rename(fs_src_path, fs_dst_path)

    def delete(self, fs_path: str) -> None:
        if os.path.isdir(fs_path):
            shutil.rmtree(fs_path)
        elif os.path.exists(fs_path):
            os.remove(fs_path)

    def need_upload_download(self) -> bool:
        return False

    def upload(self, local_path: str, fs_path: str) -> None:
        shutil.copytree(local_path, fs_path)

    def download(self, fs_path: str, local_path: str) -> None:
        shutil.copytree(fs_path, local_path)


class BDFS(FS):
    """HDFS, through the hadoop command in HADOOP_HOME or on the PATH.

    hdfs_name, hdfs_ugi: address, and "user,password".
    time_out, sleep_inter: accepted for compatibility with Fluid; failed commands are retried.
    """

    def __init__(
        self, hdfs_name: str, hdfs_ugi: str, time_out: int = 1_200_000, sleep_inter: int = 1000
    ) -> None:
        del time_out, sleep_inter
        configs = {"fs.default.name": hdfs_name, "hadoop.job.ugi": hdfs_ugi}
        self._client = HDFSClient(os.environ.get("HADOOP_HOME"), configs)

    def list_dirs(self, fs_path: str) -> list[str]:
        return [os.path.basename(path) for path in self._client.ls(fs_path) if self.is_dir(path)]

    def ls_dir(self, fs_path: str) -> tuple[list[str], list[str]]:
        """Return the names of the folders and the names of the files in a folder."""
        folders = self.list_dirs(fs_path)
        names = [os.path.basename(path) for path in self._client.ls(fs_path)]
        return folders, [name for name in names if name not in folders]

    def is_dir(self, fs_path: str) -> bool:
        return self._client.is_dir(fs_path)

    def stat(self, fs_path: str) -> bool:
        return self._client.is_exist(fs_path)

    def mkdir(self, fs_path: str) -> None:
        self._require(self._client.makedirs(fs_path), f"make folder {fs_path}")

    def mv(self, fs_src_path: str, fs_dst_path: str) -> None:
        done = self._client.rename(fs_src_path, fs_dst_path)
        self._require(done, f"rename {fs_src_path} to {fs_dst_path}")

    def delete(self, fs_path: str) -> None:
        self._require(self._client.delete(fs_path), f"remove {fs_path}")

    def need_upload_download(self) -> bool:
        return True

    def upload(self, local_path: str, fs_path: str) -> None:
        done = self._client.upload(fs_path, local_path)
        self._require(done, f"upload {local_path} to {fs_path}")

    def download(self, fs_path: str, local_path: str) -> None:
        done = self._client.download(fs_path, local_path)
        self._require(done, f"download {fs_path} to {local_path}")

    def _require(self, done: bool, what: str) -> None:
        if not done:
            raise OSError(f"HDFS: could not {what}; see the log for the output of hadoop")
