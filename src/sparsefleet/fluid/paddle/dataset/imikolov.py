"""Penn Treebank sentences, as n-grams of word indices or as whole sequences."""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparsefleet.fluid.paddle.dataset import common
from sparsefleet.fluid.paddle.dataset.common import UNKNOWN, numbered_words

__all__ = ["DataType", "build_dict", "fetch", "test", "train"]

URL = "https://dataset.bj.bcebos.com/imikolov%2Fsimple-examples.tgz"
MD5 = "30177ea32e27c525793142b6bf2c8e2d"

_FOLDER = "./simple-examples/data"
_BEGIN, _END = "<s>", "<e>"

Reader = Callable[[], Iterator[Any]]


class DataType:
    """The kind of sample: NGRAM is n word indices, SEQ is (<s> + sentence, sentence + <e>)."""

    NGRAM = 1
    SEQ = 2


def build_dict(min_word_freq: int = 50) -> dict[str, int]:
    """Return a dict from word to index for words that occur more than `min_word_freq` times."""
    counts: Counter[str] = Counter()
    for name in ("train", "valid"):
        for words in _sentences(name):
            counts.update([_BEGIN, *words, _END])
    return numbered_words(counts, min_word_freq)


def train(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Reader:
    """Return a reader of the training text.

    n: size of an n-gram; for sequences, the maximum length (0 for no limit).
    """
    return _reader("train", word_idx, n, data_type)


def test(word_idx: Mapping[str, int], n: int, data_type: int = DataType.NGRAM) -> Reader:
    """Return a reader of the validation text; see `train`."""
    return _reader("valid", word_idx, n, data_type)


def fetch() -> str:
    """Download the archive if needed."""
    return common.download(URL, "imikolov", MD5)


def _sentences(name: str) -> Iterator[list[str]]:
    with tarfile.open(fetch()) as archive:
        file = archive.extractfile(f"{_FOLDER}/ptb.{name}.txt")
        assert file is not None
        with io.TextIOWrapper(file, encoding="utf-8") as lines:
            for line in lines:
                yield line.split()


def _reader(name: str, word_idx: Mapping[str, int], n: int, data_type: int) -> Reader:
    if data_type not in (DataType.NGRAM, DataType.SEQ):
        raise ValueError(f"data_type must be DataType.NGRAM or DataType.SEQ, got {data_type!r}")
    unknown = word_idx[UNKNOWN]

    def ngrams() -> Iterator[tuple[int, ...]]:
        for words in _sentences(name):
            numbers = [word_idx.get(word, unknown) for word in [_BEGIN, *words, _END]]
            for end in range(n, len(numbers) + 1):
                yield tuple(numbers[end - n : end])

    def sequences() -> Iterator[tuple[list[int], list[int]]]:
        for words in _sentences(name):
            numbers = [word_idx.get(word, unknown) for word in words]
            if n <= 0 or len(numbers) < n:
                yield [word_idx[_BEGIN], *numbers], [*numbers, word_idx[_END]]

    return ngrams if data_type == DataType.NGRAM else sequences
