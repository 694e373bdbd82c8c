"""The skip-gram estimator compared with gensim: rate on the same text, and the quality of the
vectors.

    python bench/skip_gram.py [--quick] [--repeats 5] [--json FILE]

Both read the same words of enwik8 from memory, count nothing, and train one epoch per turn with two
threads: window 5, 5 noise words, rows of 100, rates from 0.025 down. Without ../shared the text is
drawn from Zipf's law, and there are no scores.
"""

from __future__ import annotations

import gzip
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from measure import ROOT, console, interleave, machine, parse_arguments, report, write_json
from word2vec_scores import analogy_score, similarity_score

DATA = ROOT.parent / "shared" / "data"
TEXT = DATA / "text" / "enwik8_clean_train.txt.gz"
EVALUATION = DATA / "word_eval"
TEXT_BYTES = {False: 12_000_000, True: 600_000}
DIM = 100
THREADS = 2
SENTENCE = 1000


def read_words(quick: bool) -> list[str]:
    if TEXT.exists():
        with gzip.open(TEXT, "rt") as file:
            return file.read(TEXT_BYTES[quick]).split()
    drawn = np.random.default_rng(0).zipf(1.2, TEXT_BYTES[quick] // 6)
    return [f"w{number}" for number in np.minimum(drawn, 50_000)]


def ours(path: Path, words: int) -> tuple[Any, Callable[[], float]]:
    from sparsefleet.embed import SkipGram

    model = SkipGram(path, dim=DIM, threads=THREADS, epochs=1, train=False)

    def run() -> float:
        begun = time.perf_counter()
        model.train()
        return words / (time.perf_counter() - begun)

    return model, run


def gensims(path: Path, words: int) -> tuple[Any, Callable[[], float]]:
    from gensim.models import Word2Vec
    from gensim.models.word2vec import LineSentence

    model = Word2Vec(sg=1, negative=5, vector_size=DIM, window=5, min_count=5, workers=THREADS)
    sentences = list(LineSentence(path))
    model.build_vocab(sentences)

    def run() -> float:
        begun = time.perf_counter()
        model.train(sentences, total_examples=model.corpus_count, epochs=1)
        return words / (time.perf_counter() - begun)

    return model, run


def scores(words: list[Any], vectors: np.ndarray) -> list[str]:
    place = {word: number for number, word in enumerate(words)}
    found = [
        similarity_score(EVALUATION / name, place, vectors)[0]
        for name in ("wordsim353.tsv", "simlex999.txt")
    ]
    share, _ = analogy_score(EVALUATION / "questions-words.txt.gz", place, vectors)
    return [*(f"{value:.3f}" for value in found), f"{share:.1%}"]


def main() -> None:
    options = parse_arguments(__doc__ or "")
    console.print("[bold]Skip-gram[/bold], the estimator beside gensim.", machine())
    words = read_words(options.quick)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        lines = (" ".join(words[at : at + SENTENCE]) for at in range(0, len(words), SENTENCE))
        path.write_text("\n".join(lines))
        model, run = ours(path, len(words))
        peer, run_peer = gensims(path, len(words))
        rates = interleave({"sparsefleet": run, "gensim": run_peer}, options.repeats)
        vectors = {"sparsefleet": (model.vectors.words, model.vectors.vectors),
                   "gensim": (peer.wv.index_to_key, peer.wv.vectors)}  # fmt: skip
        ratio = rates["sparsefleet"][0] / rates["gensim"][0]
        rows = [
            [name, f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}",
             *(scores(*vectors[name]) if EVALUATION.exists() else [""] * 3)]
            for name, (median, low, high) in rates.items()
        ]  # fmt: skip
    columns = ["", "words/s", "range", "WordSim-353", "SimLex-999", "analogies"]
    report(f"{THREADS} threads, {len(words):,} words", columns, rows)
    console.print(f"sparsefleet trains {ratio:.2f}x as fast as gensim.")
    write_json(options.json, {"rates": rates, "ratio": ratio, "rows": rows})


if __name__ == "__main__":
    main()
