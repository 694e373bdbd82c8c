"""A client of HDFS, as Fluid had it on trial."""

from __future__ import annotations

import os

from sparsefleet.fluid.hadoop_client import HadoopClient, in_parallel
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.utils.hdfs_utils")

__all__ = ["HDFSClient", "multi_download", "multi_upload"]


class HDFSClient(HadoopClient):
    """Files of HDFS by the hadoop command, one at a time."""

    def upload(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, retry_times: int = 5
    ) -> bool:
        """A local file or folder."""
        return self._put(local_path, hdfs_path, overwrite, retry_times)

    def download(
        self, hdfs_path: str, local_path: str, overwrite: bool = False, unzip: bool = False
    ) -> bool:
        """A file or folder, to a local path."""
        del unzip  # without effect in Fluid, too
        return self._get(hdfs_path, local_path, overwrite, 5)

    def lsr(self, hdfs_path: str, only_file: bool = True, sort: bool = True) -> list[str]:
        """All below a folder; sort: the latest last."""
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
    """Every `trainers`-th file below a folder, from number `trainer_id` on; where they are now."""
    client.make_local_dirs(local_path)
    files = client.lsr(hdfs_path, sort=True)[trainer_id::trainers]
    places = {path: os.path.join(local_path, os.path.relpath(path, hdfs_path)) for path in files}
    for place in places.values():
        client.make_local_dirs(os.path.dirname(place))
    if not in_parallel(lambda path: client.download(path, places[path]), files, multi_processes):
        raise OSError(f"not all files of {hdfs_path} could be downloaded: see the warnings before")
    return list(places.values())


def multi_upload(
    client: HDFSClient,
    hdfs_path: str,
    local_path: str,
    multi_processes: int = 5,
    overwrite: bool = False,
    sync: bool = True,
) -> None:
    """All files below a local folder, to the same places below one of HDFS."""
    del sync  # it returns when all are there
    files = [os.path.join(top, name) for top, _, names in os.walk(local_path) for name in names]

    def upload(path: str) -> bool:
        target = os.path.join(hdfs_path, os.path.relpath(path, local_path))
        client.makedirs(os.path.dirname(target))
        return client.upload(target, path, overwrite)

    if not in_parallel(upload, files, multi_processes):
        raise OSError(f"not all files of {local_path} could be uploaded: see the warnings before")
