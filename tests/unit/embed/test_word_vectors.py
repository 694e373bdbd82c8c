"""Vectors by word: similarity and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsefleet.embed import WordVectors
from sparsefleet.errors import ConfigError, CorruptFileError


@pytest.fixture
def vectors() -> WordVectors:
    values = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    return WordVectors(["the", "of", "käse", "x", "y", "z"], values)


@pytest.mark.parametrize("binary", [False, True])
def test_files_come_back_as_they_were(tmp_path: Path, vectors: WordVectors, binary: bool) -> None:
    vectors.save(tmp_path / "v", binary=binary)
    again = WordVectors.load(tmp_path / "v", binary=binary)
    assert again.words == vectors.words
    assert np.array_equal(again.vectors, vectors.vectors)


@pytest.mark.parametrize("binary", [False, True])
def test_gensim_reads_our_files_and_we_read_its(
    tmp_path: Path, vectors: WordVectors, binary: bool
) -> None:
    gensim = pytest.importorskip("gensim.models", reason="gensim is in the extra 'bench'")
    vectors.save(tmp_path / "ours", binary=binary)
    theirs = gensim.KeyedVectors.load_word2vec_format(tmp_path / "ours", binary=binary)
    assert theirs.index_to_key == vectors.words
    assert np.allclose(theirs.vectors, vectors.vectors)
    theirs.save_word2vec_format(tmp_path / "theirs", binary=binary)
    again = WordVectors.load(tmp_path / "theirs", binary=binary)
    assert again.words == vectors.words
    assert np.allclose(again.vectors, vectors.vectors)
    assert [word for word, _ in again.most_similar("the", topn=3)] == [
        word for word, _ in theirs.most_similar("the", topn=3)
    ]


def test_words_given_are_left_out_and_sums_count_signs(vectors: WordVectors) -> None:
    found = vectors.most_similar(["the", "of"], ["x"], topn=99)
    assert {word for word, _ in found} == {"käse", "y", "z"}
    unit = vectors.vectors / np.linalg.norm(vectors.vectors, axis=1, keepdims=True)
    wanted = unit[0] + unit[1] - unit[3]
    cosines = unit @ wanted / np.linalg.norm(wanted)
    assert found[0][1] == pytest.approx(max(cosines[[2, 4, 5]]), abs=1e-6)
    assert vectors.similarity("the", "the") == pytest.approx(1.0)


def test_unknown_words_and_damaged_files_are_named(tmp_path: Path, vectors: WordVectors) -> None:
    with pytest.raises(KeyError, match="'nope' is not in the vocabulary of 6 words"):
        vectors["nope"]
    vectors.save(tmp_path / "v")
    with pytest.raises(ConfigError, match="white space"):
        WordVectors(["a", "a b"], [[1.0], [2.0]]).save(tmp_path / "v")
    assert WordVectors.load(tmp_path / "v").words == vectors.words  # the file is untouched
    with pytest.raises(ConfigError, match="one row per word"):
        WordVectors(["a"], [[1.0], [2.0]])
    path = tmp_path / "v"
    path.write_bytes(b"hello\n")
    with pytest.raises(CorruptFileError, match="starts with"):
        WordVectors.load(path)
    path.write_bytes(b"2 2\na 1 2\nb 1\n")
    with pytest.raises(CorruptFileError, match="line 3: expected a word and 2 numbers"):
        WordVectors.load(path)
    path.write_bytes(b"2 2\na 1 2\n")
    with pytest.raises(CorruptFileError, match="ends after 1 of 2 words"):
        WordVectors.load(path)
    path.write_bytes(b"999999999999 999999999\n")
    with pytest.raises(CorruptFileError, match="starts with"):
        WordVectors.load(path)
