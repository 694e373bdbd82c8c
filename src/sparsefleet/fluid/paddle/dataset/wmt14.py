"""WMT14, French-English.

A sample is (source, <s> + target, target + <e>) as lists of word indices.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from sparsefleet.fluid.paddle.dataset import common

__all__ = ["gen", "get_dict", "test", "train"]

URL_TRAIN = "http://paddlemodels.bj.bcebos.com/wmt/wmt14.tgz"
MD5_TRAIN = "0791583d57d5beb693b9414c5b36798c"

START, END, UNK = "<s>", "<e>", "<unk>"
UNK_IDX = 2

_MAX_LENGTH = 80  # words per sentence

Sample = tuple[list[int], list[int], list[int]]
Reader = Callable[[], Iterator[Sample]]


def train(dict_size: int) -> Reader:
    """Return a reader of the training sentences.

    Words that are not among the first dict_size in the dictionary are unknown.
    """
    return _reader("train/train", dict_size)


def test(dict_size: int) -> Reader:
    """Return a reader of the test sentences."""
    return _reader("test/test", dict_size)


def gen(dict_size: int) -> Reader:
    """Return a reader of the sentences to translate."""
    return _reader("gen/gen", dict_size)


def get_dict(dict_size: int, reverse: bool = True) -> tuple[dict[Any, Any], ...]:
    """Return both languages' dictionaries, from index to word or, with reverse=False, from word to
    index.
    """
    with tarfile.open(_fetch()) as archive:
        words: tuple[dict[Any, Any], ...] = tuple(
            dict(_words(archive, ending, dict_size)) for ending in ("src.dict", "trg.dict")
        )
    if not reverse:
        return words
    return tuple({number: word for word, number in found.items()} for found in words)


def _fetch() -> str:
    return common.download(URL_TRAIN, "wmt14", MD5_TRAIN)


def _words(archive: tarfile.TarFile, ending: str, size: int) -> dict[str, int]:
    (member,) = (one for one in archive if one.name.endswith(ending))
    file = archive.extractfile(member)
    assert file is not None
    lines = islice(file, size)
    return {line.decode("utf-8").strip(): number for number, line in enumerate(lines)}


def _reader(part: str, dict_size: int) -> Reader:
    path = _fetch()

    def reader() -> Iterator[Sample]:
        with tarfile.open(path) as archive:
            source = _words(archive, "src.dict", dict_size)
            target = _words(archive, "trg.dict", dict_size)
            for member in [one for one in archive if one.name.endswith(part)]:
                file = archive.extractfile(member)
                assert file is not None
                for line in file:
                    pair = line.decode("utf-8").strip().split("\t")
                    if len(pair) != 2:
                        continue
                    words = [START, *pair[0].split(), END]
                    before = [source.get(word, UNK_IDX) for word in words]
                    after = [target.get(word, UNK_IDX) for word in pair[1].split()]
                    if max(len(before), len(after)) <= _MAX_LENGTH:
                        yield before, [target[START], *after], [*after, target[END]]

    return reader
