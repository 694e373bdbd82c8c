"""Sentences from files or memory, as blocks of text or of integers.

In shapes, N is the number of words in a block and S the number of sentences in it.
"""

from __future__ import annotations

import glob
import gzip
import operator
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.errors import ConfigError, DataError, InputFileError

__all__ = ["Corpus", "Encoded", "Source", "Vocabulary", "open_corpus"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Iterable[Sequence[Any]]

_BLOCK_BYTES = 256 * 1024
_BLOCK_SENTENCES = 1000
_MAX_WORD_BYTES = 1 << 20
_WORD_END, _SENTENCE_END = "\x1f", "\x1e"
_MAX_SENTENCE = 10_000

Block = bytes | tuple[NDArray[np.int64], NDArray[np.uint64]]
"""Text, or the ids of consecutive sentences and the end of each sentence."""

Encoded = tuple[NDArray[np.uint32], NDArray[np.uint64], int]
"""Word numbers uint32[N], ends uint64[S], and the word count of the block, unknown words included.
"""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Sentences that can be read repeatedly, in blocks."""

    files: tuple[str, ...] = ()
    sentences: Iterable[Sequence[Any]] | None = None
    """Sentences in memory, used instead of files."""
    has_ids: bool = False
    """Whether words are 64-bit integers instead of strings."""

    def blocks(self) -> Iterator[Block]:
        """Yield all sentences once, in blocks."""
        if self.sentences is None:
            for path in self.files:
                yield from _file_blocks(path)
        elif self.has_ids:
            yield from _id_blocks(self.sentences)
        else:
            yield from _text_blocks(self.sentences)

    @property
    def form(self) -> _core.TextForm:
        return _core.TextForm.lines if self.sentences is None else _core.TextForm.separated

    def count(self) -> Vocabulary:
        """Read the corpus once and return all its words, in no particular order."""
        if self.has_ids:
            return _count_ids(self.blocks())
        index = _core.WordIndex()
        total = 0
        for block in self.blocks():
            assert isinstance(block, bytes)
            total += index.count(block, self.form)
        return TextVocabulary(index, total)


class Vocabulary(Protocol):
    """The words of a corpus, indexed from the most frequent down once `keep` has sorted them."""

    total_words: int
    """Number of words in the text, including rare ones; on servers, summed over all workers."""
    own_words: int
    """Number of words in this worker's text."""

    @property
    def counts(self) -> NDArray[np.uint64]:
        """How often each word occurs, uint64[V]."""

    def words(self) -> list[Any]:
        """Return all words: strings or integers."""

    def keys(self) -> NDArray[np.int64]:
        """Return the key of each word in a table: int64[V]. Strings are hashed by `data.hash64`."""

    def encode(self, block: Block, form: _core.TextForm) -> Encoded:
        """Return the block with words replaced by their indices; unknown words are left out."""

    def set_counts(self, counts: NDArray[np.uint64], total_words: int) -> None:
        """Replace the counts, for example with sums over all workers."""

    def plus(self, counted: Any) -> Vocabulary:
        """Return a vocabulary with the words and counts of both; the own text is that of
        `counted`.
        """

    def keep(self, min_count: int, max_words: int) -> None:
        """Drop words that occur fewer times, and the rarest beyond `max_words` unless it is 0."""


class TextVocabulary:
    """A vocabulary of strings, indexed in native code."""

    def __init__(self, index: _core.WordIndex, total_words: int) -> None:
        self._index = index
        self.total_words = self.own_words = total_words

    @property
    def counts(self) -> NDArray[np.uint64]:
        return np.asarray(self._index.counts(), np.uint64)

    def words(self) -> list[Any]:
        return [word.decode("utf-8", "replace") for word in self._index.words()]

    def keys(self) -> NDArray[np.int64]:
        hashed = [_core.hash64(word, 0) for word in self._index.words()]
        return np.array(hashed, np.uint64).view(np.int64)

    def encode(self, block: Block, form: _core.TextForm) -> Encoded:
        assert isinstance(block, bytes)
        encoded: Encoded = self._index.encode(block, form)
        return encoded

    def set_counts(self, counts: NDArray[np.uint64], total_words: int) -> None:
        self._index.set_counts(np.ascontiguousarray(counts, np.uint64))
        self.total_words = total_words

    def plus(self, counted: TextVocabulary) -> TextVocabulary:
        index = _core.WordIndex()
        for part in (self, counted):
            for word, count in zip(part._index.words(), part.counts.tolist(), strict=True):
                index.add(word, count)
        made = TextVocabulary(index, self.total_words + counted.total_words)
        made.own_words = counted.own_words
        return made

    def keep(self, min_count: int, max_words: int) -> None:
        self._index.keep(min_count, max_words)


class IdVocabulary:
    """A vocabulary of 64-bit integers."""

    def __init__(
        self, ids: NDArray[np.int64], counts: NDArray[np.uint64], total_words: int
    ) -> None:
        self.total_words = self.own_words = total_words
        self._index(ids, counts)

    @property
    def counts(self) -> NDArray[np.uint64]:
        return self._counts

    def words(self) -> list[Any]:
        return list(self._ids.tolist())

    def keys(self) -> NDArray[np.int64]:
        return self._ids

    def encode(self, block: Block, form: _core.TextForm) -> Encoded:
        del form
        assert isinstance(block, tuple)
        ids, ends = block
        at = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        is_known = self._sorted[at] == ids
        words = self._order[at[is_known]].astype(np.uint32)
        known_before = np.concatenate([[0], np.cumsum(is_known)]).astype(np.uint64)
        return words, known_before[ends.astype(np.int64)], len(ids)

    def set_counts(self, counts: NDArray[np.uint64], total_words: int) -> None:
        self._counts = counts
        self.total_words = total_words

    def plus(self, counted: IdVocabulary) -> IdVocabulary:
        summed = _sum_counts(self._ids, self._counts, counted._ids, counted._counts)
        made = IdVocabulary(*summed, self.total_words + counted.total_words)
        made.own_words = counted.own_words
        return made

    def keep(self, min_count: int, max_words: int) -> None:
        order = np.lexsort((self._ids, -self._counts.astype(np.int64)))
        order = order[self._counts[order] >= min_count][: max_words or None]
        self._index(self._ids[order], self._counts[order])

    def _index(self, ids: NDArray[np.int64], counts: NDArray[np.uint64]) -> None:
        self._ids = ids
        self._counts = counts
        self._order = np.argsort(ids, kind="stable")
        self._sorted = ids[self._order]


def open_corpus(source: Source) -> Corpus:
    """Return the corpus for `source`, which is a path, a pattern, a list of them, or sentences.

    Raises ConfigError for a source that cannot be read more than once, such as a generator.
    """
    if isinstance(source, (str, os.PathLike)):
        return Corpus(files=tuple(_expand([source])))
    if isinstance(source, Sequence) and source and isinstance(source[0], (str, os.PathLike)):
        return Corpus(files=tuple(_expand(source)))
    if not isinstance(source, Iterable):
        raise ConfigError(
            "sentences must be text files, or lists of strings or integers, got a "
            f"{type(source).__name__}"
        )
    if iter(source) is source:
        raise ConfigError(
            f"sentences must be readable more than once, got a {type(source).__name__}: pass a "
            "list, or an object whose __iter__ starts over"
        )
    sentences: Iterable[Sequence[Any]] = source  # type: ignore[assignment]
    first = _first_word(sentences)
    if first is _NOTHING:
        raise ConfigError("sentences is empty: pass at least one sentence")
    if isinstance(first, str):
        return Corpus(sentences=sentences)
    if isinstance(first, (int, np.integer)):
        return Corpus(sentences=sentences, has_ids=True)
    raise ConfigError(
        f"a sentence must be a list of strings or integers, found a {type(first).__name__} in a "
        "sentence"
    )


_NOTHING = object()


def _first_word(sentences: Iterable[Any]) -> object:
    """Return the first word of the first sentence that has one, or `_NOTHING`."""
    for number, sentence in enumerate(sentences):
        if isinstance(sentence, (str, bytes)) or not isinstance(sentence, Iterable):
            raise ConfigError(
                f"sentence {number}: expected a list of strings or integers, got {sentence!r:.100}"
                f"{'; split it into words' if isinstance(sentence, str) else ''}"
            )
        for word in sentence:
            return word
    return _NOTHING


def _expand(paths: Iterable[Any]) -> list[str]:
    files: list[str] = []
    for path in map(os.fspath, paths):
        if any(blank in path.strip() for blank in " \n") and not os.path.exists(path):
            raise InputFileError(
                f"no file is named {path[:100]!r}; a string is the path of a text file, so if it "
                "is a sentence, pass a list of its words, as in [text.split()]"
            )
        found = sorted(glob.glob(path)) if glob.has_magic(path) else [path]
        if not found:
            raise InputFileError(f"no file matches {path!r}")
        files += found
    return files


def _file_blocks(path: str) -> Iterator[bytes]:
    """Yield blocks that end at a line break or, within a very long line, between two words."""
    rest = b""
    try:
        with _open(path) as file:
            while chunk := file.read(_BLOCK_BYTES):
                chunk = rest + chunk
                end = chunk.rfind(b"\n") + 1 or chunk.rfind(b" ") + 1
                if end == 0 and len(chunk) > _MAX_WORD_BYTES:
                    raise DataError(
                        f"{path}: found a word of more than {_MAX_WORD_BYTES:,} bytes; expected "
                        "text with white space between words"
                    )
                rest = chunk[end:]
                if end:
                    yield chunk[:end]
    except (OSError, EOFError, zlib.error) as error:
        raise InputFileError(f"cannot read {path}: {error}") from error
    if rest:
        yield rest


def _open(path: str) -> IO[bytes]:
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")  # type: ignore[return-value]


def _text_blocks(sentences: Iterable[Sequence[Any]]) -> Iterator[bytes]:
    parts: list[str] = []
    for number, sentence in enumerate(sentences):
        try:
            text = _WORD_END.join(sentence)
        except TypeError as error:
            raise DataError(
                f"sentence {number}: expected a list of strings, as in the first one ({error})"
            ) from error
        if text.count(_WORD_END) != max(0, len(sentence) - 1) or _SENTENCE_END in text:
            raise DataError(
                f"sentence {number}: a word contains the character 0x1E or 0x1F, which is "
                "reserved: remove it"
            )
        parts.append(text)
        if len(parts) == _BLOCK_SENTENCES:
            yield _SENTENCE_END.join(parts).encode()
            parts = []
    if parts:
        yield _SENTENCE_END.join(parts).encode()


def _id_blocks(
    sentences: Iterable[Sequence[Any]],
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
    parts: list[NDArray[np.int64]] = []
    for number, sentence in enumerate(sentences):
        ids = _as_ids(number, sentence)
        parts += [ids[at : at + _MAX_SENTENCE] for at in range(0, len(ids), _MAX_SENTENCE)]
        if len(parts) >= _BLOCK_SENTENCES:
            yield _joined(parts)
            parts = []
    if parts:
        yield _joined(parts)


def _as_ids(number: int, sentence: Any) -> NDArray[np.int64]:
    """Return a sentence as integers; other numbers and texts of digits are errors."""
    try:
        found = np.asarray(sentence)
        if found.dtype.kind not in ("iu" if isinstance(sentence, np.ndarray) else "i"):
            found = np.array(list(map(operator.index, sentence)), np.int64)
        if found.ndim != 1:
            raise ValueError(f"found {found.ndim} dimensions")
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(
            f"sentence {number}: expected 64-bit integers, as in the first one ({error})"
        ) from error
    return found.astype(np.int64)


def _joined(parts: list[NDArray[np.int64]]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    return np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.uint64)


def _count_ids(blocks: Iterable[Block]) -> IdVocabulary:
    ids, counts, total = np.empty(0, np.int64), np.empty(0, np.uint64), 0
    for block in blocks:
        assert isinstance(block, tuple)
        found, times = np.unique(block[0], return_counts=True)
        total += len(block[0])
        ids, counts = _sum_counts(ids, counts, found, times.astype(np.uint64))
    return IdVocabulary(ids, counts, total)


def _sum_counts(
    ids: NDArray[np.int64],
    counts: NDArray[np.uint64],
    more_ids: NDArray[np.int64],
    more_counts: NDArray[np.uint64],
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    joined, inverse = np.unique(np.concatenate([ids, more_ids]), return_inverse=True)
    sums = np.bincount(inverse, np.concatenate([counts, more_counts]), len(joined))
    return joined, sums.astype(np.uint64)
