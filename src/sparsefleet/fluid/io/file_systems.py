"""File systems for checkpoints, under Fluid's names: local folders or HDFS."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod

from sparsefleet.fluid.io.hadoop import HDFSClient

__all__ = ["BDFS", "FS", "LocalFS"]


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
