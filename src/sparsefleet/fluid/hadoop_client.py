"""Files of HDFS by the hadoop command."""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparsefleet.errors import ConfigError

__all__ = ["HadoopClient"]

_TIMEOUT_S = 3600.0  # for one command; files are large
_FIELDS_OF_LS = 8

_log = logging.getLogger("sparsefleet.fluid")

Item = TypeVar("Item")


class HadoopClient:
    """Runs `hadoop fs`, and again if it fails.

    hadoop_home: its folder; the command is bin/hadoop there, or that of the PATH if it is None.
    configs: given to each command as -D, such as fs.default.name and hadoop.job.ugi.
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
        """What is in a file; an empty text if there is none."""
        path = self._given(hdfs_path)
        return self._run(["-cat", path], 5)[1].rstrip("\n") if self.is_file(path) else ""

    def ls(self, hdfs_path: str) -> list[str]:
        """Paths in a folder; none if there is no such folder."""
        return [line[-1] for line in self._lines(["-ls", hdfs_path])]

    def makedirs(self, hdfs_path: str) -> bool:
        return self.is_dir(hdfs_path) or self._succeeds(["-mkdir", "-p", hdfs_path], 3)

    def delete(self, hdfs_path: str) -> bool:
        """A file, or a folder with all in it; True also if there is none."""
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
            raise ConfigError(f"there is no {local_path} to upload")
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
        """Path, time and whether it is a folder, of all below."""
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
        """Exit code and what was printed."""
        code, printed = 0, ""
        for number in range(max(tries, 1)):
            done = subprocess.run(
                [*self._words, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
            code, printed = done.returncode, done.stdout
            if code == 0:
                break
            if words[0] != "-test":
                _log.warning(
                    "hadoop fs %s: exit code %d in try %d of %d: %s",
                    " ".join(words),
                    code,
                    number + 1,
                    tries,
                    done.stderr.strip(),
                )
        return code, printed

    def _given(self, path: str | None) -> str:
        if not path:
            raise ConfigError(f"a path of HDFS is needed, got {path!r}")
        return path


def in_parallel(work: Callable[[Item], bool], items: Sequence[Item], at_a_time: int) -> bool:
    """Whether all succeeded. Threads do: each waits for a command."""
    with ThreadPoolExecutor(max(at_a_time, 1)) as pool:
        return all(list(pool.map(work, items)))
