"""The skip-gram estimator in one process."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.servers import JOB_KEY, NativeServers

from sparsefleet.embed import SkipGram, SkipGramConfig, skip_gram
from sparsefleet.embed.skip_gram import split_block
from sparsefleet.errors import ConfigError, DataError, InputFileError, RpcError
from sparsefleet.fleet.fleet import Fleet
from sparsefleet.store import RemoteStore

TOPICS = [["cat", "dog", "cow", "pig"], ["car", "bus", "bike", "tram"], ["red", "blue", "pink"]]
SMALL = {"dim": 12, "min_count": 1, "sample": 0.0, "epochs": 15, "threads": 1, "negatives": 2}


def topic_sentences(count: int = 600) -> list[list[str]]:
    """Sentences whose words all belong to one topic."""
    random = np.random.default_rng(0)
    return [list(random.choice(TOPICS[i % len(TOPICS)], 6)) for i in range(count)]


def nearest_are_of_the_topic(model: SkipGram) -> bool:
    return all(
        {word for word, _ in model.most_similar(topic[0], topn=len(topic) - 1)} == set(topic[1:])
        for topic in TOPICS
    )


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("locked", [False, True])
def test_words_that_occur_together_become_neighbors(threads: int, locked: bool) -> None:
    model = SkipGram(topic_sentences(), **{**SMALL, "threads": threads}, locked=locked)
    assert nearest_are_of_the_topic(model)
    assert model.words_per_s > 0


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_files_give_the_same_vectors_as_sentences(tmp_path: Path, name: str) -> None:
    sentences = topic_sentences()
    text = "".join(" ".join(sentence) + "\n" for sentence in sentences)
    path = tmp_path / name
    with gzip.open(path, "wt") if name.endswith(".gz") else open(path, "w") as file:
        file.write(text)
    from_file = SkipGram(path, **SMALL)
    from_memory = SkipGram(sentences, **SMALL)
    assert from_file.vectors.words == from_memory.vectors.words
    assert np.array_equal(from_file.vectors.vectors, from_memory.vectors.vectors)


def test_a_pattern_reads_all_its_files(tmp_path: Path) -> None:
    for number, topic in enumerate(TOPICS):
        (tmp_path / f"part-{number}").write_text((" ".join(topic) + "\n") * 5)
    model = SkipGram(str(tmp_path / "part-*"), **SMALL, train=False)
    assert len(model.vectors) == sum(map(len, TOPICS))


def test_integers_are_words_too() -> None:
    number_of = {word: 10**12 + i for i, word in enumerate(w for topic in TOPICS for w in topic)}
    texts = topic_sentences()
    ids = [[number_of[word] for word in sentence] for sentence in texts]
    model = SkipGram(ids, **SMALL)
    wanted = {number_of[word] for word in TOPICS[0][1:]}
    assert {word for word, _ in model.most_similar(number_of["cat"], topn=3)} == wanted


def test_one_thread_with_the_same_seed_gives_the_same_bits() -> None:
    one, other = (SkipGram(topic_sentences(), **SMALL, seed=7) for _ in range(2))
    assert np.array_equal(one.vectors.vectors, other.vectors.vectors)
    third = SkipGram(topic_sentences(), **SMALL, seed=8)
    assert not np.array_equal(one.vectors.vectors, third.vectors.vectors)


def test_rare_words_are_dropped_and_the_rarest_beyond_a_limit() -> None:
    sentences = [["often", "often", "some", "once"], ["often", "some"]]
    settings = {**SMALL, "min_count": 2}
    assert SkipGram(sentences, **settings, train=False).vectors.words == ["often", "some"]
    assert SkipGram(sentences, **settings, max_words=1, train=False).vectors.words == ["often"]


@pytest.mark.parametrize("as_ids", [False, True])
def test_further_sentences_add_words_and_keep_known_vectors(as_ids: bool) -> None:
    animals = [sentence for sentence in topic_sentences() if sentence[0] in TOPICS[0]]
    others = [sentence for sentence in topic_sentences() if sentence[0] not in TOPICS[0]]
    number_of = {word: 7 * i for i, word in enumerate(w for topic in TOPICS for w in topic)}

    def form(sentences: list[list[str]]) -> list[list[object]]:
        return [[number_of[word] if as_ids else word for word in each] for each in sentences]

    model = SkipGram(form(animals), **SMALL)
    known = {word: model.vectors[word].copy() for word in model.vectors.words}
    model.extend(form(others), train=False)
    assert set(known) < set(model.vectors.words)
    assert len(model.vectors) == sum(map(len, TOPICS))
    assert all(np.array_equal(model.vectors[word], rows) for word, rows in known.items())
    model.train()
    for topic in TOPICS:
        first, *rest = form([topic])[0]
        assert {word for word, _ in model.most_similar(first, topn=len(rest))} == set(rest)


def test_counts_add_up_over_further_sentences() -> None:
    model = SkipGram([["a", "b"]] * 2 + [["c"]], **{**SMALL, "min_count": 2}, train=False)
    model.extend([["b", "d"], ["b", "d", "c"]], train=False)
    assert model.vectors.words == ["b", "a", "d"]  # "c" was dropped after the first sentences
    with pytest.raises(ConfigError, match="words are strings, but the new sentences contain int"):
        model.extend([[1, 2]])


def fail(*_: object, **__: object) -> None:
    raise RpcError("the server does not answer")


def test_a_failed_extension_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first, more = [["a", "b"]] * 2, [["b", "d"], ["b", "d"]]
    model = SkipGram(first, **{**SMALL, "min_count": 2})
    words, vectors, loss = model.vectors.words, model.vectors.vectors.copy(), model.loss
    with monkeypatch.context() as patch:
        patch.setattr(model, "_first_values", fail)
        with pytest.raises(RpcError):
            model.extend(more)
    with pytest.raises(DataError, match="sentence 1: expected a list of strings"):
        model.extend([["d"], [3]])
    model.train()  # on the first sentences again
    assert model.vectors.words == words
    model.extend(more, train=False)
    assert model.vectors.words == ["b", "a", "d"]
    again = SkipGram(first, **{**SMALL, "min_count": 2})
    assert (again.loss, again.vectors.vectors.tolist()) == (loss, vectors.tolist())
    again.train()
    again.extend(more, train=False)
    assert np.array_equal(again.vectors.vectors, model.vectors.vectors)


@pytest.mark.parametrize("barrier", ["words/counted", "words/counts_read"])
def test_a_failed_extension_on_servers_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, barrier: str
) -> None:
    waits = RemoteStore.barrier

    def fail_at(store: RemoteStore, name: str, *arguments: Any, **options: Any) -> None:
        fail() if name == barrier else waits(store, name, *arguments, **options)

    with NativeServers(2) as servers:
        monkeypatch.setenv("SPARSEFLEET_JOB_KEY", JOB_KEY.decode())
        monkeypatch.setenv("SPARSEFLEET_ROLE", "worker")
        monkeypatch.setenv("SPARSEFLEET_SERVERS", ",".join(servers.endpoints))
        monkeypatch.setenv("SPARSEFLEET_WORKERS", "1")
        monkeypatch.setenv("SPARSEFLEET_INDEX", "0")
        monkeypatch.setattr(skip_gram, "process_fleet", Fleet())
        model = SkipGram([["a", "b"]] * 2, **{**SMALL, "min_count": 2}, train=False)
        for more in ([["b", "c"]], [["b", "d"]]):
            with monkeypatch.context() as patch:
                patch.setattr(RemoteStore, "barrier", fail_at)
                with pytest.raises(RpcError, match="not answer"):
                    model.extend(more)
            assert model.vectors.words == ["a", "b"]
        model.extend([["b", "d"]], train=False)  # only once among the counts of the servers
        assert model.vectors.words == ["b", "a"]
        model.extend([["c", "d"]], train=False)
        assert model.vectors.words == ["b", "a", "d"]
        assert model._vocabulary.counts.tolist() == [3, 2, 2]
        assert model._vocabulary.total_words == 8


def test_the_loss_falls_and_epochs_are_reported() -> None:
    model = SkipGram(topic_sentences(), **SMALL, train=False)
    seen: list[tuple[int, float]] = []
    model.train(on_epoch=lambda epoch, loss: seen.append((epoch, loss)))
    assert [epoch for epoch, _ in seen] == list(range(1, 16))
    assert seen[-1][1] < seen[0][1]


def test_blocks_are_cut_after_sentences_into_parts_of_the_wanted_size() -> None:
    words = np.arange(90, dtype=np.uint32)
    ends = np.arange(10, 100, 10, dtype=np.uint64)
    parts = split_block((words, ends, 180), 60)  # half of the words are unknown
    assert [part[0].tolist() for part in parts] == [
        list(range(begin, begin + 30)) for begin in (0, 30, 60)
    ]
    assert [part[1].tolist() for part in parts] == [[10, 20, 30]] * 3
    assert [part[2] for part in parts] == [60] * 3
    assert len(split_block((words, ends, 180), 1)) == 9
    assert split_block((words, ends, 180), 180) == [(words, ends, 180)]


def test_words_may_hold_white_space_in_sentences() -> None:
    model = SkipGram([["new york", "is", "big"]] * 5, **SMALL, train=False)
    assert "new york" in model.vectors


def test_bad_input_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="readable more than once, got a generator"):
        SkipGram(sentence for sentence in topic_sentences())
    with pytest.raises(ConfigError, match="sentences is empty"):
        SkipGram([])
    with pytest.raises(ConfigError, match="min_count=5 times or more among 3 words"):
        SkipGram([["a", "b", "c"]])
    with pytest.raises(ConfigError, match="strings or integers, found a float"):
        SkipGram([[1.5]])
    with pytest.raises(DataError, match="sentence 1: expected a list of strings"):
        SkipGram([["a"], ["b", 3]], **SMALL)
    for wrong in ([2, 2.7], [2, "3"], np.array([2.0, 3.0]), [[2, 3], [4, 5]], [2**64]):
        with pytest.raises(DataError, match="sentence 1: expected 64-bit integers"):
            SkipGram([[1, 2], wrong], **SMALL)
    with pytest.raises(DataError, match="sentence 0: a word contains the character"):
        SkipGram([["a\x1fb", "c"]], **SMALL)
    with pytest.raises(InputFileError, match="no file matches"):
        SkipGram(str(tmp_path / "none*"))
    with pytest.raises(InputFileError, match="cannot read"):
        SkipGram(tmp_path / "absent.txt")
    with pytest.raises(ConfigError, match="SkipGramConfig.window must"):
        SkipGram([["a"]], window=0)
    with pytest.raises(ConfigError, match="its settings are dim, window"):
        SkipGram([["a"]], size=3)
    with pytest.raises(ConfigError, match="either a SkipGramConfig or its fields"):
        SkipGram([["a"]], SkipGramConfig(), dim=3)
