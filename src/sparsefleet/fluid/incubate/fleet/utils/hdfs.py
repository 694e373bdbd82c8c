"""A client of HDFS, as fleets have it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from sparsefleet.data.file_list import split_files
from sparsefleet.fluid.hadoop_client import HadoopClient, in_parallel
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.utils.hdfs")

__all__ = ["HDFSClient"]


class HDFSClient(HadoopClient):
    """Files of HDFS by the hadoop command; several at a time where there are several.

    >>> client = HDFSClient("/opt/hadoop", {"fs.default.name": "hdfs://a:54310"})
    >>> client.split_files(["a", "b", "c"], trainer_id=1, trainers=2)
    ['c']
    """

    def lsr(self, hdfs_path: str, excludes: Sequence[str] = ()) -> list[str]:
        """Files below a folder, but for those with these names."""
        found = [path for path, _, is_folder in self._found_below(hdfs_path) if not is_folder]
        return [path for path in found if os.path.basename(path) not in excludes]

    @staticmethod
    def split_files(files: list[str], trainer_id: int, trainers: int) -> list[str]:
        """The part of a worker; see `fleet.split_files`."""
        return split_files(files, trainer_id, trainers)

    def download(
        self,
        hdfs_path: str,
        local_path: str,
        multi_processes: int = 5,
        overwrite: bool = False,
        retry_times: int = 5,
    ) -> bool:
        """A file, or the files of a folder, into a local folder; whether all succeeded."""
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
        """A local file, or the files of a folder, into a folder of HDFS; whether all succeeded."""
        files = [local_path]
        if os.path.isdir(local_path):
            files = sorted(os.path.join(local_path, name) for name in os.listdir(local_path))
        self.makedirs(hdfs_path)

        def put(path: str) -> bool:
            target = f"{hdfs_path.rstrip('/')}/{os.path.basename(path)}"
            return self._put(path, target, overwrite, retry_times)

        return in_parallel(put, files, multi_processes)

    def upload_dir(self, dest_dir: str, local_dir: str, overwrite: bool = False) -> bool:
        """A folder as a whole, into another."""
        local = local_dir.rstrip("/")
        target = f"{dest_dir.rstrip('/')}/{os.path.basename(local)}"
        return self._put(local, target, overwrite, retry_times=5)
