"""IMDB movie reviews. A sample is (word indices, 0 for positive or 1 for negative)."""

from __future__ import annotations

import re
import string
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from sparsefleet.fluid.paddle.dataset import common
from sparsefleet.fluid.paddle.dataset.common import UNKNOWN, numbered_words

__all__ = ["build_dict", "fetch", "test", "tokenize", "train", "word_dict"]

URL = "https://dataset.bj.bcebos.com/imdb%2FaclImdb_v1.tar.gz"
MD5 = "7c2ac02c03563afcf9b574c7e56c153a"

Reader = Callable[[], Iterator[tuple[list[int], int]]]

_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def word_dict() -> dict[str, int]:
    """Return a dict from word to index for words that occur more than 150 times."""
    return build_dict(re.compile(r"aclImdb/(train|test)/(pos|neg)/.*\.txt$"), 150)


def build_dict(pattern: re.Pattern[str], cutoff: int) -> dict[str, int]:
    """Return a dict from word to index for words that occur more than `cutoff` times in matching
    files.
    """
    counts: Counter[str] = Counter()
    for words in tokenize(pattern):
        counts.update(words)
    return numbered_words(counts, cutoff)


def train(word_idx: Mapping[str, int]) -> Reader:
    """Return a reader of the 25,000 training reviews."""
    return _reader("train", word_idx)


def test(word_idx: Mapping[str, int]) -> Reader:
    """Return a reader of the 25,000 test reviews."""
    return _reader("test", word_idx)


def tokenize(pattern: re.Pattern[str]) -> Iterator[list[str]]:
    """Yield the words of each matching file, in lower case without punctuation."""
    with tarfile.open(fetch()) as archive:
        for member in archive:
            file = archive.extractfile(member) if pattern.match(member.name) else None
            if file is not None:
                text = file.read().decode("utf-8", "replace")
                yield text.translate(_NO_PUNCTUATION).lower().split()


def fetch() -> str:
    """Download the archive if needed."""
    return common.download(URL, "imdb", MD5)


def _reader(part: str, word_idx: Mapping[str, int]) -> Reader:
    unknown = word_idx[UNKNOWN]
    samples = [
        ([word_idx.get(word, unknown) for word in words], label)
        for label, kind in enumerate(("pos", "neg"))
        for words in tokenize(re.compile(rf"aclImdb/{part}/{kind}/.*\.txt$"))
    ]
    return lambda: iter(samples)
