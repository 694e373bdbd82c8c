from __future__ import annotations

import gzip

import pytest
from tests.unit.fluid.paddle.dataset.conftest import Put, tar_of

from sparsefleet.fluid.paddle.dataset import conll05, imdb, imikolov, wmt16


@pytest.fixture
def treebank(put: Put) -> None:
    files = {
        "./simple-examples/data/ptb.train.txt": b"a b a\nb c\n",
        "./simple-examples/data/ptb.valid.txt": b"a <unk>\n",
    }
    put(imikolov, "URL", "MD5", "imikolov", tar_of(files))


def test_words_are_numbered_by_frequency(treebank: None) -> None:
    words = imikolov.build_dict(min_word_freq=1)
    assert words == {"<e>": 0, "<s>": 1, "a": 2, "b": 3, "<unk>": 4}


def test_ngrams_run_over_sentences_with_their_marks(treebank: None) -> None:
    words = imikolov.build_dict(min_word_freq=1)
    found = list(imikolov.train(words, 3)())
    assert found == [(1, 2, 3), (2, 3, 2), (3, 2, 0), (1, 3, 4), (3, 4, 0)]
    assert list(imikolov.test(words, 5)()) == []


def test_sequences_are_shifted_by_one(treebank: None) -> None:
    words = imikolov.build_dict(min_word_freq=1)
    reader = imikolov.train(words, 3, imikolov.DataType.SEQ)
    assert list(reader()) == [([1, 3, 4], [3, 4, 0])]
    assert len(list(imikolov.train(words, 0, imikolov.DataType.SEQ)())) == 2
    with pytest.raises(ValueError, match="data_type"):
        imikolov.train(words, 3, 7)


def test_reviews_have_words_without_punctuation(put: Put) -> None:
    files = {
        "aclImdb/train/pos/0_9.txt": b"Good, good film!\n",
        "aclImdb/train/neg/0_1.txt": b"bad film",
        "aclImdb/test/pos/0_8.txt": b"good",
        "aclImdb/train/urls_pos.txt": b"not a review",
    }
    put(imdb, "URL", "MD5", "imdb", tar_of(files))
    words = imdb.build_dict(imdb.re.compile("aclImdb/train/.*/.*txt$"), 0)
    assert words == {"film": 0, "good": 1, "bad": 2, "<unk>": 3}
    reader = imdb.train(words)
    assert list(reader()) == list(reader()) == [([1, 1, 0], 0), ([2, 0], 1)]
    assert list(imdb.test(words)()) == [([1], 0)]
    assert imdb.word_dict() == {"<unk>": 0}


def test_translations_know_the_same_words_after_a_restart(put: Put) -> None:
    files = {
        "wmt16/train": b"a dog\tein Hund\na cat\teine Katze\nonly one side\n",
        "wmt16/test": b"a bird\tein Vogel\n",
        "wmt16/val": b"",
    }
    put(wmt16, "DATA_URL", "DATA_MD5", "wmt16", tar_of(files), "wmt16.tar.gz")
    assert list(wmt16.test(5, 100)()) == [([0, 3, 2, 1], [0, 3, 2], [3, 2, 1])]
    assert wmt16.get_dict("en", 5) == {"<s>": 0, "<e>": 1, "<unk>": 2, "a": 3, "dog": 4}
    assert wmt16.get_dict("en", 5, reverse=True)[4] == "dog"
    assert len(list(wmt16.train(9, 9, "de")())) == 2
    assert list(wmt16.validation(9, 9)()) == []
    with pytest.raises(ValueError, match="'en' or 'de', got 'fr'"):
        wmt16.train(9, 9, "fr")


def test_roles_of_words_around_a_verb(put: Put) -> None:
    def place(name: str, text: bytes) -> None:
        put(conll05, f"{name}_URL", f"{name}_MD5", "conll05st", text)

    place("WORDDICT", b"<unk>\nshe\nsaw\nhim\nbos\neos\n")
    place("VERBDICT", b"see\n")
    place("TRGDICT", b"B-V\nI-V\nB-A0\nI-A0\nB-A1\nI-A1\nO\n")
    place("EMB", b"0 1 2")
    words = b"She\nsaw\nhim\nthere\n\n"
    props = b"-    (A0*)\nsee  (V*)\n-    (A1*\n-    *)\n\n"
    folder = "conll05st-release/test.wsj"
    files = {
        f"{folder}/words/test.wsj.words.gz": gzip.compress(words),
        f"{folder}/props/test.wsj.props.gz": gzip.compress(props),
    }
    place("DATA", tar_of(files))
    labels = conll05.get_dict()[2]
    assert sorted(labels.values()) == list(range(7))
    assert labels["I-A0"] == labels["B-A0"] + 1
    (sample,) = conll05.test()()
    assert sample[0] == [0, 2, 3, 0]
    assert [column[0] for column in sample[1:6]] == [4, 0, 2, 3, 0]
    assert sample[6:8] == ([0] * 4, [1, 1, 1, 1])
    assert sample[8] == [labels[name] for name in ("B-A0", "B-V", "B-A1", "I-A1")]
    assert conll05.get_embedding().endswith("emb")
