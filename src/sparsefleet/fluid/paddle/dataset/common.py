"""Download and cache the files of data sets."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping

__all__ = ["DATA_HOME", "UNKNOWN", "download", "md5file", "numbered_words"]


DATA_HOME = os.path.expanduser("~/.cache/paddle/dataset")
"""Paddle's own cache, so that existing downloads are used. A script may assign a different
folder.
"""

_TIMEOUT_S = 30.0


def md5file(fname: str) -> str:
    """Return the MD5 sum of a file in hexadecimal digits."""
    with open(fname, "rb") as file:
        digest = hashlib.md5(usedforsecurity=False)
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(url: str, module_name: str, md5sum: str, save_name: str | None = None) -> str:
    """Return the path of a data set's file, DATA_HOME/module_name/name; download it if missing.

    An existing file with a different MD5 sum is replaced. If the download fails, raises a
    RuntimeError that names the file and the URL.
    """
    folder = os.path.join(DATA_HOME, module_name)
    path = os.path.join(folder, save_name or url.split("/")[-1])
    found = md5file(path) if os.path.exists(path) else ""
    if found == md5sum:
        return path
    os.makedirs(folder, exist_ok=True)
    pending = f"{path}.{os.getpid()}.part"  # several processes may download it at the same time
    try:
        with (
            urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer,
            open(pending, "wb") as file,
        ):
            shutil.copyfileobj(answer, file)
        got = md5file(pending)
        if got != md5sum:
            raise RuntimeError(f"{url} has MD5 {got}, expected {md5sum}; {path} was not written")
        os.replace(pending, path)
    except (urllib.error.URLError, OSError) as error:
        has = f"has MD5 {found}" if found else "does not exist"
        raise RuntimeError(
            f"dataset {module_name!r}: {path} {has}, expected MD5 {md5sum}, and {url} cannot be "
            f"downloaded ({error}); put the file into {folder}"
        ) from error
    finally:
        if os.path.exists(pending):
            os.remove(pending)
    return path


UNKNOWN = "<unk>"


def numbered_words(counts: Mapping[str, int], more_than: int) -> dict[str, int]:
    """Return a dict from word to index, most frequent first. UNKNOWN, for all other words, is last.

    more_than: only words that occur more often than this get an index.

    >>> numbered_words({"b": 2, "a": 2, "rare": 1, "c": 3}, 1)
    {'c': 0, 'a': 1, 'b': 2, '<unk>': 3}
    """
    kept = [word for word, count in counts.items() if count > more_than and word != UNKNOWN]
    kept.sort(key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate([*kept, UNKNOWN])}
