"""Files that are read through the hadoop command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["HadoopFiles"]

_PREFIXES = ("hdfs:", "afs:")


@dataclass(kw_only=True, slots=True)
class HadoopFiles:
    """How files with hdfs: or afs: paths are fetched; others are opened.

    >>> HadoopFiles(fs_name="hdfs://a:54310", fs_ugi="me,secret").command("hdfs:/part.gz")[-2:]
    ['-text', 'hdfs:/part.gz']
    >>> HadoopFiles(download_cmd="fetch -q").command("afs:/my part")
    "fetch -q 'afs:/my part'"
    """

    fs_name: str | None = None
    fs_ugi: str | None = None
    download_cmd: str = ""

    def command(self, path: str) -> Sequence[str] | str | None:
        """What prints the file, decompressed; None for a file of another kind."""
        if not path.startswith(_PREFIXES):
            return None
        if self.download_cmd:
            return f"{self.download_cmd} {shlex.quote(path)}"
        home = os.environ.get("HADOOP_HOME")
        words = ["hadoop" if home is None else os.path.join(home, "bin", "hadoop"), "fs"]
        if self.fs_name is not None:
            words += ["-D", f"fs.default.name={self.fs_name}"]
        if self.fs_ugi is not None:
            words += ["-D", f"hadoop.job.ugi={self.fs_ugi}"]
        return [*words, "-text" if path.endswith(".gz") else "-cat", path]
