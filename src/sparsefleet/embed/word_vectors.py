"""Word vectors, their similarity, and the file formats of other word2vec programs.

In shapes, V is the number of words and D the width of a vector.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.errors import ConfigError, CorruptFileError, InputFileError

__all__ = ["WordVectors"]

_MAX_VALUES = 1 << 36


class WordVectors:
    """Vectors of words, most frequent first.

    words: V strings or integers. vectors: float32[V, D].

    >>> import numpy as np
    >>> found = WordVectors(["cat", "dog", "car"], np.array([[1, 0], [0.9, 0.1], [0, 1]]))
    >>> found.most_similar("cat", topn=1)
    [('dog', 0.9938837289810181)]
    >>> found["car"]
    array([0., 1.], dtype=float32)
    """

    def __init__(self, words: Sequence[Any], vectors: Any) -> None:
        self.words = list(words)
        self.vectors: NDArray[np.float32] = np.ascontiguousarray(vectors, np.float32)
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise ConfigError(
                f"got {len(self.words)} words and vectors of shape {list(self.vectors.shape)}; "
                "expected one row per word"
            )
        self._numbers = {word: number for number, word in enumerate(self.words)}
        self._unit: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __getitem__(self, word: Any) -> NDArray[np.float32]:
        vector: NDArray[np.float32] = self.vectors[self.number_of(word)]
        return vector

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def number_of(self, word: Any) -> int:
        """Return the row index of a word. Raises KeyError if the word is unknown."""
        try:
            return self._numbers[word]
        except KeyError:
            raise KeyError(f"word {word!r} is not in the vocabulary of {len(self)} words") from None

    def similarity(self, one: Any, other: Any) -> float:
        """Return the cosine similarity of two words' vectors."""
        unit = self._unit_vectors()
        return float(unit[self.number_of(one)] @ unit[self.number_of(other)])

    def most_similar(
        self, positive: Any, negative: Any = (), topn: int = 10
    ) -> list[tuple[Any, float]]:
        """Return the words nearest by cosine to the sum of `positive` minus the sum of `negative`.

        Each argument is a word or a list of words, for example
        ``most_similar(["king", "woman"], ["man"])``. As in gensim, the result leaves out the given
        words.
        """
        plus, minus = _as_list(positive), _as_list(negative)
        if not isinstance(topn, int) or isinstance(topn, bool) or topn < 0:
            raise ConfigError(f"topn must be an int >= 0, got {topn!r}")
        if not plus and not minus:
            raise ConfigError("most_similar needs at least one word, got none")
        unit = self._unit_vectors()
        given = [self.number_of(word) for word in (*plus, *minus)]
        signs = np.array([1.0] * len(plus) + [-1.0] * len(minus), np.float32)
        mean = signs @ unit[given]
        cosines = unit @ (mean / max(float(np.linalg.norm(mean)), 1e-12))
        cosines[given] = -np.inf
        topn = min(topn, len(self) - len(set(given)))
        nearest = np.argpartition(-cosines, max(topn - 1, 0))[:topn]
        nearest = nearest[np.argsort(-cosines[nearest], kind="stable")]
        return [(self.words[number], float(cosines[number])) for number in nearest]

    def save(self, path: str | os.PathLike[str], *, binary: bool = False) -> None:
        """Write the vectors in word2vec's text or binary format, which gensim and others read.

        An existing file is replaced only when the new one is complete.
        """
        texts = [str(word).encode() for word in self.words]
        for word, text in zip(self.words, texts, strict=True):
            if any(space in text for space in (b" ", b"\n")):
                raise ConfigError(
                    f"word {word!r} contains white space, which word2vec's format cannot "
                    "represent: replace it before training, or save the vectors with numpy"
                )
        with _replacing(path) as file:
            file.write(f"{len(self)} {self.dim}\n".encode())
            for text, vector in zip(texts, self.vectors, strict=True):
                if binary:
                    file.write(text + b" " + vector.tobytes() + b"\n")
                else:
                    values = " ".join(f"{value:.9g}" for value in vector)
                    file.write(text + b" " + values.encode() + b"\n")

    @staticmethod
    def load(path: str | os.PathLike[str], *, binary: bool = False) -> WordVectors:
        """Read vectors from a file in word2vec's text or binary format.

        Raises CorruptFileError if the file is damaged.
        """
        try:
            with open(path, "rb") as file:
                count, dim = _read_head(path, file)
                read = _read_binary if binary else _read_text
                return read(os.fspath(path), file, count, dim)
        except OSError as error:
            raise InputFileError(f"cannot read {os.fspath(path)}: {error}") from error

    def _unit_vectors(self) -> NDArray[np.float32]:
        if self._unit is None:
            lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
            self._unit = (self.vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
        return self._unit


def _as_list(words: Any) -> list[Any]:
    if isinstance(words, (str, int, np.integer)):
        return [words]
    return list(words)


def _read_head(path: Any, file: IO[bytes]) -> tuple[int, int]:
    head = file.readline(100)
    try:
        count, dim = map(int, head.split())
        if count < 0 or dim < 1 or count * dim > _MAX_VALUES:
            raise ValueError
    except ValueError:
        raise CorruptFileError(
            f"{os.fspath(path)} starts with {head[:40]!r}; word2vec's format starts with the "
            "number of words and their width; GloVe's files lack that line, so add it"
        ) from None
    return count, dim


def _read_text(path: str, file: IO[bytes], count: int, dim: int) -> WordVectors:
    words, rows = [], []
    for number, line in zip(range(count), file, strict=False):
        word, *values = line.rstrip(b"\n").split(b" ")
        try:
            row = np.array([value for value in values if value], np.float32)
        except ValueError:
            row = np.empty(0, np.float32)
        if len(row) != dim:
            raise CorruptFileError(
                f"{path}, line {number + 2}: expected a word and {dim} numbers, got {line[:60]!r}"
            )
        words.append(word.decode("utf-8", "replace"))
        rows.append(row)
    _check_complete(path, len(words), count)
    return WordVectors(words, np.array(rows, np.float32).reshape(count, dim))


def _read_binary(path: str, file: IO[bytes], count: int, dim: int) -> WordVectors:
    words: list[str] = []
    rows: list[NDArray[np.float32]] = []
    for _ in range(count):
        word = b"".join(_until_blank(file)).lstrip(b"\n")
        values = file.read(4 * dim)
        if len(values) < 4 * dim:
            break
        if not words and _is_text(values):
            raise CorruptFileError(
                f"{path} has numbers as text, expected 4 bytes for each: it is in word2vec's text "
                "format, so load it without binary=True"
            )
        words.append(word.decode("utf-8", "replace"))
        rows.append(np.frombuffer(values, "<f4"))
    _check_complete(path, len(words), count)
    return WordVectors(words, np.array(rows, np.float32).reshape(count, dim))


def _is_text(values: bytes) -> bool:
    """Return whether the bytes are the beginning of numbers as text."""
    return all(byte in b"0123456789+-.e \n" for byte in values)


@contextlib.contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Yield a new file that replaces `path` when the block ends without an error."""
    if not os.path.isfile(path) and os.path.exists(path):  # a directory, or a device such as a pipe
        with open(path, "wb") as file:
            yield file
        return
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise FileNotFoundError(
            f"cannot write {os.fspath(path)}: there is no directory {folder}; create it"
        )
    partial = f"{os.fspath(path)}.{os.getpid()}.partial"
    try:
        with open(partial, "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
        raise


def _until_blank(file: IO[bytes]) -> Iterable[bytes]:
    while (byte := file.read(1)) not in (b" ", b""):
        yield byte


def _check_complete(path: str, found: int, count: int) -> None:
    if found < count:
        raise CorruptFileError(
            f"{path} ends after {found} of {count} words: it is truncated, or in the other format "
            "(binary=True)"
        )
