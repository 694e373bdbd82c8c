from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
import pytest
from tests.unit.bench import bench_path  # noqa: F401

import word2vec_quality
from sparsefleet.nn import apply_gradients
from word2vec_ours import FleetModel
from word2vec_pairs import (
    NUM_NOISE,
    NUM_WORDS,
    PAIRS_PER_SENTENCE,
    PairTurns,
    draw_sentences,
    pairs_of,
    write_pair_files,
)
from word2vec_scores import analogy_score, similarity_score, spearman
from word2vec_tables import told_sides
from word2vec_text import Corpus, draw_batches, expected_pairs, read_corpus

PLACE = {"man": 0, "woman": 1, "king": 2, "queen": 3, "sea": 4}
VECTORS = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 2], [1, 1, 2], [-1, 0, 0]], np.float32)


def corpus_of(num_words: int) -> Corpus:
    text = np.arange(num_words, dtype=np.int32) % 40
    return Corpus([f"word{i}" for i in range(40)], np.bincount(text), text)


def test_pairs_are_all_of_a_window_in_both_directions() -> None:
    sentences = draw_sentences(3, seed=0)
    words, contexts = pairs_of(sentences, seed=0)
    assert len(words) == 3 * PAIRS_PER_SENTENCE
    assert contexts.shape == (3 * PAIRS_PER_SENTENCE, 1 + NUM_NOISE)
    assert contexts.min() >= 1
    assert contexts.max() <= NUM_WORDS
    found = sorted(zip(words.tolist(), contexts[:, 0].tolist(), strict=True))
    assert found == sorted((b, a) for a, b in found)


def test_batches_begin_again_where_they_end() -> None:
    turns = PairTurns(argparse.Namespace(rank=0))
    [first, *_] = turn = turns.turn(100_000, 5)
    assert [len(words) for words, _ in turn] == [100_000] * 5
    assert all(words is first[0] for words, _ in turn[::2])


def test_pair_files_are_multi_slot_without_the_id_that_paddle_leaves_out(tmp_path: Path) -> None:
    paths = write_pair_files(tmp_path, 2, 150)
    lines = [line.split() for path in paths for line in path.read_text().splitlines()]
    assert len(lines) == 300
    assert {(line[0], line[2], line[4], len(line)) for line in lines} == {("1", "1", "5", 10)}
    assert "0" not in {word for line in lines for word in line}


def test_workers_share_a_text_and_draw_as_many_pairs_as_expected() -> None:
    corpus = corpus_of(20_000)
    drawn = [list(draw_batches(corpus, 500, rank, 2)) for rank in (0, 1)]
    total = sum(len(words) for batches in drawn for words, _ in batches)
    assert total == pytest.approx(expected_pairs(corpus), rel=0.02)
    words, contexts = drawn[0][0]
    assert len(words) == 500
    assert contexts.shape == (500, 1 + NUM_NOISE)


def test_rare_words_are_left_out_of_a_corpus(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("the sea the sea the sea the sea the sea the end")
    corpus = read_corpus(tmp_path / "text.gz", 1_000)
    assert corpus.vocabulary == ["the", "sea"]
    assert corpus.counts.tolist() == [6, 5]
    assert len(corpus.text) == 11


def test_rank_correlation_shares_ranks_of_equal_values() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(0.8)
    assert spearman([1, 1, 2], [5, 5, 9]) == pytest.approx(1.0)


def test_scores_leave_out_unknown_words(tmp_path: Path) -> None:
    judged = tmp_path / "judged.tsv"
    judged.write_text("# one\tother\nKing\tqueen\t9\nman\twoman\t8\nman\tsea\t0\nman\tship\t9\n")
    score, pairs = similarity_score(judged, PLACE, VECTORS)
    assert (pairs, score) == (3, pytest.approx(1.0))
    with gzip.open(tmp_path / "asked.gz", "wt") as file:
        file.write(": family\nMan king woman queen\nman ship woman sea\nman king woman sea\n")
    assert analogy_score(tmp_path / "asked.gz", PLACE, VECTORS) == (0.5, 2)


def test_missing_text_is_reported_instead_of_scores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(word2vec_quality, "TEXT", tmp_path / "enwik8.gz")
    tables, notes = word2vec_quality.measure_quality(quick=True)
    assert tables == []
    assert "enwik8.gz" in notes[0]


def test_sides_are_reported_by_batch_size_and_with_their_errors() -> None:
    section = {"examples_per_s": 10.0, "cpu_us_per_example": 2.0}
    figures = {
        "sparsefleet local 2": {"error": None, "sections": {"100": [section] * 2}},
        "gensim 2": {"error": "skipped: pip install gensim", "sections": {}},
    }
    told = told_sides(figures, 100)
    assert told["sparsefleet local 2"]["rate"] == [10.0, 10.0]
    assert told["sparsefleet local 2"]["error"] is None
    assert told["gensim 2"]["error"] == "skipped: pip install gensim"


def test_ours_learns_by_its_own_products_what_it_learns_by_those_of_torch() -> None:
    learnt = []
    for plain_operators in (False, True):
        model = FleetModel(1.0, plain_operators=plain_operators)
        losses = []
        for words, contexts in PairTurns(argparse.Namespace(rank=0)).turn(50, 3):
            loss = model(words, contexts)
            loss.backward()
            apply_gradients(model)
            losses.append(loss.item())
        learnt.append(losses)
    np.testing.assert_allclose(*learnt, rtol=1e-6)
    assert learnt[0][2] != learnt[0][0]
