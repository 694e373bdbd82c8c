"""The CoNLL 2005 data set of semantic roles. T is the number of words in a sentence.

A sample contains nine lists of T integers: the word indices; the five words around the verb (two
before, the verb, two after), each repeated T times; the verb, repeated T times; 1 near the verb
and 0 elsewhere; and the labels.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Callable, Iterator, Sequence

from sparsefleet.fluid.paddle.dataset import common

__all__ = ["fetch", "get_dict", "get_embedding", "test"]

DATA_URL = "http://paddlemodels.bj.bcebos.com/conll05st/conll05st-tests.tar.gz"
DATA_MD5 = "387719152ae52d60422c016e92a742fc"
WORDDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FwordDict.txt"
WORDDICT_MD5 = "ea7fb7d4c75cc6254716f0177a506baa"
VERBDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FverbDict.txt"
VERBDICT_MD5 = "0d2977293bbb6cbefab5b0f97db1e77c"
TRGDICT_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2FtargetDict.txt"
TRGDICT_MD5 = "d8c7f03ceb5fc2e5a0fa7503a4353751"
EMB_URL = "http://paddlemodels.bj.bcebos.com/conll05st%2Femb"
EMB_MD5 = "bf436eb0faa1f6f9103017f8be57cdb7"

UNK_IDX = 0

Reader = Callable[[], Iterator[tuple[list[int], ...]]]

_WORDS = "conll05st-release/test.wsj/words/test.wsj.words.gz"
_PROPS = "conll05st-release/test.wsj/props/test.wsj.props.gz"


def get_dict() -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the dictionaries of words, verbs and labels."""
    return (
        _numbered(_lines(_file(WORDDICT_URL, WORDDICT_MD5))),
        _numbered(_lines(_file(VERBDICT_URL, VERBDICT_MD5))),
        _label_numbers(_lines(_file(TRGDICT_URL, TRGDICT_MD5))),
    )


def get_embedding() -> str:
    """Return the path of a file with pretrained word vectors."""
    return _file(EMB_URL, EMB_MD5)


def test() -> Reader:
    """Return a reader of the test set, the only free part; Fluid's examples also train on it."""
    words, verbs, labels = get_dict()
    path = _file(DATA_URL, DATA_MD5)

    def reader() -> Iterator[tuple[list[int], ...]]:
        for sentence, verb, tags in _propositions(path):
            length, at = len(sentence), tags.index("B-V")
            near = [-2, -1, 0, 1, 2]
            surroundings = [words.get(_word_at(sentence, at + step), UNK_IDX) for step in near]
            marks = [int(abs(place - at) <= 2) for place in range(length)]
            yield (
                [words.get(word, UNK_IDX) for word in sentence],
                *([number] * length for number in surroundings),
                [verbs[verb]] * length,
                marks,
                [labels[tag] for tag in tags],
            )

    return reader


def fetch() -> None:
    """Download all files."""
    get_dict()
    get_embedding()
    _file(DATA_URL, DATA_MD5)


def _file(url: str, md5: str) -> str:
    return common.download(url, "conll05st", md5)


def _lines(path: str) -> list[str]:
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file]


def _numbered(names: Sequence[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(names)}


def _label_numbers(labels: Sequence[str]) -> dict[str, int]:
    """Assign an index to each label, with B-X and I-X adjacent and O last.

    Labels are sorted, so that all processes agree.
    """
    tags = sorted({label[2:] for label in labels if label.startswith(("B-", "I-"))})
    return _numbered([*(f"{part}-{tag}" for tag in tags for part in "BI"), "O"])


def _word_at(sentence: Sequence[str], place: int) -> str:
    if place < 0:
        return "bos"
    return sentence[place] if place < len(sentence) else "eos"


def _propositions(path: str) -> Iterator[tuple[list[str], str, list[str]]]:
    """Yield (words, verb, labels) for each verb in each sentence."""
    with tarfile.open(path) as archive:
        lines = zip(_gzip_lines(archive, _WORDS), _gzip_lines(archive, _PROPS), strict=True)
        sentence: list[str] = []
        rows: list[list[str]] = []
        for word, columns in lines:
            if columns:
                sentence.append(word.strip())
                rows.append(columns.split())
                continue
            if rows:
                verbs = [row[0] for row in rows if row[0] != "-"]
                for column, verb in enumerate(verbs, start=1):
                    yield sentence, verb, _tags([row[column] for row in rows])
            sentence, rows = [], []


def _gzip_lines(archive: tarfile.TarFile, name: str) -> Iterator[str]:
    file = archive.extractfile(name)
    assert file is not None
    with gzip.open(file) as unpacked, io.TextIOWrapper(unpacked, encoding="utf-8") as lines:
        for line in lines:
            yield line.strip()


def _tags(column: Sequence[str]) -> list[str]:
    """Convert brackets such as `(A0*`, `*`, `*)`, `(V*)` to B-, I- and O labels."""
    tags, current, inside = [], "O", False
    for text in column:
        if text.startswith("("):
            current = text[1 : text.index("*")]
            tags.append(f"B-{current}")
            inside = not text.endswith(")")
        elif text in ("*", "*)"):
            tags.append(f"I-{current}" if inside else "O")
            inside = inside and text == "*"
        else:
            raise ValueError(f"a CoNLL label must have brackets around *, got {text!r}")
    return tags
