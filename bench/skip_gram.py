"""The skip-gram estimator compared with gensim: rate on the same text, and the quality of the
vectors.

    python bench/skip_gram.py [--quick] [--repeats 5] [--json FILE]

Both read the same words of enwik8 from memory, count nothing, and train one epoch per turn with two
threads: window 5, 5 noise words, rows of 100, rates from 0.025 down. Then jobs of 2 servers and 2
workers with a thread each train as many epochs on halves of the text, exchanging differences after
every 50,000 words of a worker (the default, like mode geo) or every 5,000 (as close as mode async).
Scores are those of vectors trained for as many epochs in one go, by every side. Without ../shared
the text is drawn from Zipf's law, and there are no scores.
"""

from __future__ import annotations

import gzip
import itertools
import json
import statistics
import subprocess
import sys
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
JOBS = {"geo 2x2, exchange every 50,000 words": 50_000, "async 2x2, every 5,000": 5_000}
WORKERS = 2
JOB_DEADLINE_S = 300
Spread = tuple[float, float, float]
Vectors = tuple[list[Any], np.ndarray]


def read_words(quick: bool) -> list[str]:
    if TEXT.exists():
        with gzip.open(TEXT, "rt") as file:
            return file.read(TEXT_BYTES[quick]).split()
    drawn = np.random.default_rng(0).zipf(1.2, TEXT_BYTES[quick] // 6)
    return [f"w{number}" for number in np.minimum(drawn, 50_000)]


def ours(path: Path, words: int) -> Callable[[], float]:
    from sparsefleet.embed import SkipGram

    model = SkipGram(path, dim=DIM, threads=THREADS, epochs=1, train=False)

    def run() -> float:
        begun = time.perf_counter()
        model.train()
        return words / (time.perf_counter() - begun)

    return run


def our_vectors(path: Path, epochs: int) -> Vectors:
    from sparsefleet.embed import SkipGram

    trained = SkipGram(path, dim=DIM, threads=THREADS, epochs=epochs).vectors
    return trained.words, trained.vectors


def untrained_gensim(path: Path) -> tuple[Any, list[list[str]]]:
    from gensim.models import Word2Vec
    from gensim.models.word2vec import LineSentence

    model = Word2Vec(sg=1, negative=5, vector_size=DIM, window=5, min_count=5, workers=THREADS)
    sentences = list(LineSentence(path))
    model.build_vocab(sentences)
    return model, sentences


def gensim_vectors(path: Path, epochs: int) -> Vectors:
    model, sentences = untrained_gensim(path)
    model.train(sentences, total_examples=model.corpus_count, epochs=epochs)
    return model.wv.index_to_key, model.wv.vectors


def gensims(path: Path, words: int) -> Callable[[], float]:
    model, sentences = untrained_gensim(path)

    def run() -> float:
        begun = time.perf_counter()
        model.train(sentences, total_examples=model.corpus_count, epochs=1)
        return words / (time.perf_counter() - begun)

    return run


def job(
    folder: Path, lines: list[str], *, words: int, epochs: int, exchange_words: int
) -> tuple[Spread, Vectors]:
    """Return the rate of the epochs after the first, of all workers together, and the vectors."""
    from sparsefleet.embed import WordVectors

    parts = []
    for index in range(WORKERS):
        parts.append(folder / f"part.{index}.txt")
        parts[-1].write_text("\n".join(lines[index::WORKERS]))
    subprocess.run(
        [sys.executable, "-m", "sparsefleet", "launch", "--servers", "2", "--workers", str(WORKERS),
         "--native-servers", "--log-dir", str(folder / "logs"),
         str(Path(__file__).with_name("skip_gram_worker.py")), *map(str, parts),
         "--dim", str(DIM), "--epochs", str(epochs), "--exchange-words", str(exchange_words),
         "--out", str(folder)],
        check=True, timeout=JOB_DEADLINE_S, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    times = [json.loads((folder / f"times.{index}.json").read_text()) for index in range(WORKERS)]
    ends = [max(each) for each in zip(*times, strict=True)]
    rates = [words / (end - begin) for begin, end in itertools.pairwise(ends)][1:]
    vectors = WordVectors.load(folder / "vectors.bin", binary=True)
    return (statistics.median(rates), min(rates), max(rates)), (vectors.words, vectors.vectors)


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
        lines = [" ".join(words[at : at + SENTENCE]) for at in range(0, len(words), SENTENCE)]
        path.write_text("\n".join(lines))
        sides = {"sparsefleet": ours(path, len(words)), "gensim": gensims(path, len(words))}
        rates = interleave(sides, options.repeats)
        epochs = options.repeats + 1
        vectors: dict[str, Vectors] = {}
        if EVALUATION.exists():
            vectors["sparsefleet"] = our_vectors(path, epochs)
            vectors["gensim"] = gensim_vectors(path, epochs)
        for how, exchange_words in itertools.islice(JOBS.items(), 1 if options.quick else None):
            name = f"sparsefleet {how}"
            rates[name], vectors[name] = job(
                Path(folder), lines, words=len(words), epochs=epochs, exchange_words=exchange_words
            )  # fmt: skip
    ratios = {name: rate[0] / rates["gensim"][0] for name, rate in rates.items()}
    rows = [
        [name, f"{median:,.0f}", f"{low:,.0f} to {high:,.0f}", f"{ratios[name]:.2f}x",
         *(scores(*vectors[name]) if EVALUATION.exists() else [""] * 3)]
        for name, (median, low, high) in rates.items()
    ]  # fmt: skip
    columns = ["", "words/s", "range", "over gensim", "WordSim-353", "SimLex-999", "analogies"]
    report(f"{THREADS} threads or workers, {len(words):,} words", columns, rows)
    write_json(options.json, {"rates": rates, "ratio": ratios["sparsefleet"], "rows": rows})


if __name__ == "__main__":
    main()
