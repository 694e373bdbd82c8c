"""WMT16, English and German. A sample is (source, target after <s>, target before <e>): numbers."""

from __future__ import annotations

import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator

from sparsefleet.dataset import common
from sparsefleet.dataset.word_numbers import UNKNOWN

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
    """A reader of the training sentences; dictionaries have at most as many words as given."""
    return _reader("train", src_dict_size, trg_dict_size, src_lang)


def test(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """As `train`, of the test sentences."""
    return _reader("test", src_dict_size, trg_dict_size, src_lang)


def validation(src_dict_size: int, trg_dict_size: int, src_lang: str = "en") -> Reader:
    """As `train`, of the validation sentences."""
    return _reader("val", src_dict_size, trg_dict_size, src_lang)


def get_dict(lang: str, dict_size: int, reverse: bool = False) -> dict[str, int] | dict[int, str]:
    """Word -> number of "en" or "de"; `reverse`: number -> word."""
    words = _words(lang, dict_size)
    if reverse:
        return dict(enumerate(words))
    return {word: number for number, word in enumerate(words)}


def fetch() -> str:
    """The archive, downloaded if need be."""
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
    """The marks, then words by frequency; kept as a file, one a line, as Paddle keeps them."""
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
    pending = f"{path}.{os.getpid()}.part"  # several processes may make it at once
    with open(pending, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{word}\n" for word in words)
    os.replace(pending, path)
    return words


def _pairs(part: str) -> Iterator[list[str]]:
    """[English, German] of each line that has both."""
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
