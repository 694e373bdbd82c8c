"""Sentences and vector files that a new user passes by mistake to `sparsefleet.embed`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsefleet.embed import SkipGram, WordVectors
from sparsefleet.errors import ConfigError, CorruptFileError, InputFileError

WALKS = [["ann", "bob", "cid", "ann", "cid", "bob"]] * 20


def vectors(*words: str) -> WordVectors:
    return WordVectors(list(words), np.arange(4 * len(words), dtype=np.float32).reshape(-1, 4))


def skip_gram(sentences: object) -> SkipGram:
    return SkipGram(sentences, dim=4, min_count=1, epochs=1, threads=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("sentences", ["ann met bob", ["ann met bob", "bob met ann"]])
def test_a_sentence_in_place_of_a_path_is_explained(sentences: object) -> None:
    with pytest.raises(InputFileError, match=r"pass a list of its words, as in \[text\.split"):
        skip_gram(sentences)
    with pytest.raises(InputFileError, match="pass a list of its words"):
        skip_gram(WALKS).extend(sentences)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        (None, "sentences must be text files, or lists of strings or integers, got a NoneType"),
        ([[None, "ann"]], "found a NoneType in a sentence"),
        (("ann met bob" for _ in range(2)), "must be readable more than once"),
        ([1, 2, 3], "sentence 0: expected a list of strings or integers, got 1"),
        ((["ann"], "ann met bob")[1:] * 0, "sentences is empty"),
    ],
)
def test_what_is_no_list_of_words_is_named(sentences: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        skip_gram(sentences)


def test_a_file_with_a_blank_in_its_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "my text.txt").write_text("ann bob\n" * 5)
    assert len(skip_gram(tmp_path / "my text.txt").vectors) == 2


@pytest.mark.parametrize("topn", ["3", 1.5, -1, True])
def test_a_wrong_number_of_neighbors_is_named(topn: object) -> None:
    with pytest.raises(ConfigError, match="topn must be an int >= 0, got"):
        vectors("ann", "bob").most_similar("ann", topn=topn)  # type: ignore[arg-type]


def test_a_text_file_is_not_loaded_as_a_binary_one(tmp_path: Path) -> None:
    skip_gram(WALKS).save(tmp_path / "vectors.txt")
    with pytest.raises(CorruptFileError, match="load it without binary=True"):
        WordVectors.load(tmp_path / "vectors.txt", binary=True)


def test_a_failed_save_keeps_the_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    vectors("ann").save(path)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="contains white space"):
        vectors("ann", "bob cid").save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_for_vectors_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no directory .*; create it"):
        vectors("ann").save(tmp_path / "missing" / "vectors.txt")
