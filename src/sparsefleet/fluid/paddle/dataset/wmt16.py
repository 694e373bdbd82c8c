"""WMT16, English-German.

A sample is (source, <s> + target, target + <e>) as lists of word indices.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator

from sparsefleet.fluid.paddle.dataset import common
from sparsefleet.fluid.paddle.dataset.common import UNKNOWN

__all__ = ["fetch", "get_dict", "test", "train", "validation"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/wmt/wmt16.tar.gz"
DATA_MD5 = "0c38be43600334966403524a40dcd81e"

TOTAL_EN_WORDS = 11250
TOTAL_DE_WORDS = 19220

START_MARK, END_MARK, UNK_MARK = "<s>", "<e>", UNKNOWN

Sample = tuple[list[int], list[int], list[int]]
Reader = Callable[[], Iterator[Sample]]

_COLUMNS = {"en": 0, "de": 1}


def train(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """Return a reader of the training sentences; dictionaries have at most the given size."""
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """Return a reader of the test sentences; see `train`."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """Return a reader of the validation sentences; see `train`."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[str, int] | dict[int, str]:
    """Return a dict from word to index for "en" or "de" or, with `reverse`, from index to word."""
    words = _words(lang, dict_size)
    if reverse:
        return dict(enumerate(words))
    return {word: number for number, word in enumerate(words)}


def fetch() -> str:
    """Download the archive if needed."""
    return common.download(DATA_URL, "wmt16", DATA_MD5, "wmt16.tar.gz")


def _reader(part: str, src_dict_size: int, trg_dict_size: int, src_lang: str) -> Reader:
    _check_language(src_lang)
    fetch()

    def reader() -> Iterator[Sample]:
        column = _COLUMNS[src_lang]
        source = {word: i for i, word in enumerate(_words(src_lang, src_dict_size))}
        other = "de" if src_lang == "en" else "en"
        target = {word: i for i, word in enumerate(_words(other, trg_dict_size))}
        start, end, unknown = (source[mark] for mark in (START_MARK, END_MARK, UNK_MARK))
        for pair in _pairs(part):
            before = [source.get(word, unknown) for word in pair[column].split()]
            after = [target.get(word, unknown) for word in pair[1 - column].split()]
            yield [start, *before, end], [start, *after], [*after, end]

    return reader


def _words(lang: str, dict_size: int) -> list[str]:
    """Return the special tokens, then the words by frequency.

    The list is cached in a file, as in Paddle.
    """
    _check_language(lang)
    size = min(dict_size, TOTAL_EN_WORDS if lang == "en" else TOTAL_DE_WORDS)
    path = os.path.join(os.path.dirname(fetch()), f"{lang}_{size}.dict")
    if os.path.exists(path):
        with open(path, encoding="utf-8", newline="\n") as file:
            words = file.read().split("\n")[:-1]
        if len(words) == size:
            return words
    counts: Counter[str] = Counter()
    for pair in _pairs("train"):
        counts.update(pair[_COLUMNS[lang]].split())
    found = [word for word, _ in counts.most_common(max(size - 3, 0))]
    words = [START_MARK, END_MARK, UNK_MARK, *found]
    pending = f"{path}.{os.getpid()}.part"  # several processes may create it at the same time
    with open(pending, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)
    os.replace(pending, path)
    return words


def _pairs(part: str) -> Iterator[list[str]]:
    """Yield [English, German] for each line that has both."""
    with tarfile.open(fetch()) as archive:
        file = archive.extractfile(f"wmt16/{part}")
        assert file is not None
        with io.TextIOWrapper(file, encoding="utf-8", newline="\n") as lines:
            for line in lines:
                pair = line.strip().split("\t")
                if len(pair) == 2:
                    yield pair


def _check_language(lang: str) -> None:
    if lang not in _COLUMNS:
        raise ValueError(f"the language must be 'en' or 'de', got {lang!r}")
