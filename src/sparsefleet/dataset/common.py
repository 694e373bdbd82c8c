"""Where the files of data sets are kept, and how they get there."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request

__all__ = ["DATA_HOME", "download", "md5file"]

DATA_HOME = os.path.expanduser("~/.cache/paddle/dataset")
"""Paddle's own cache: what it has downloaded is used. A script may assign another folder."""

_TIMEOUT_S = 30.0


def md5file(fname: str) -> str:
    """The MD5 sum of a file, in hexadecimal digits."""
    with open(fname, "rb") as file:
        digest = hashlib.md5(usedforsecurity=False)
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """The path of a file of a data set: DATA_HOME/module_name/name, fetched if it is not there.

    A file there with another MD5 sum is replaced. RuntimeError, which names file and URL, if the
    file cannot be had.
    """
    folder = os.path.join(DATA_HOME, module_name)
    path = os.path.join(folder, save_name or url.split("/")[-1])
    found = md5file(path) if os.path.exists(path) else ""
    if found == md5sum:
        return path
    os.makedirs(folder, exist_ok=True)
    pending = f"{path}.{os.getpid()}.part"  # several processes may want it at once
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,
            open(pending, "wb") as file,
        ):
            shutil.copyfileobj(answer, file)
        got = md5file(pending)
        if got != md5sum:
            raise RuntimeError(f"{url} has MD5 {got}, wanted {md5sum}; {path} was not written")
        os.replace(pending, path)
    except (urllib.error.URLError, OSError) as error:
        has = f"has MD5 {found}" if found else "is not there"
        raise RuntimeError(
            f"data set {module_name!r}: {path} {has}, wanted MD5 {md5sum}, and {url} cannot be "
            f"fetched ({error}); put the file into {folder}"
        ) from error
    finally:
        if os.path.exists(pending):
            os.remove(pending)
    return path
