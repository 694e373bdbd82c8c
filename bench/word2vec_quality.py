"""The quality of vectors that sparsefleet and gensim learn from the same text.

    python bench/word2vec_quality.py [--quick] [--json FILE]

The text is the beginning of enwik8 (../shared/data/text); the scores are Spearman's correlation
with WordSim-353 and SimLex-999, and the share of correct analogies. All sides use the same
vocabulary, downsampling, windows, number of noise words, rates and one pass. Nothing is timed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ctr_names import GENSIM, OURS
from ctr_start import PROGRAM, SideSpec, Sources, fleet, start
from markdown_page import first_line
from measure import ROOT, argument_parser, console, machine, report, write_json
from word2vec_scores import analogy_score, similarity_score
from word2vec_text import Corpus, expected_pairs, read_corpus
from word2vec_text_sides import DIM

DATA = ROOT.parent / "shared" / "data"
TEXT = DATA / "text" / "enwik8_clean_train.txt.gz"
EVALUATION = DATA / "word_eval"
TEXT_BYTES = {False: 12_000_000, True: 600_000}
BATCH = 500
SPECS = (
    SideSpec(engine=GENSIM, threads=2),
    SideSpec(engine=OURS, threads=2),
    fleet("async"),
    fleet("geo"),
)
COLUMNS = ("scores", "WordSim-353", "SimLex-999", "analogies")


def measure_quality(quick: bool) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a table of scores with notes; without the data, only a note."""
    missing = [path for path in (TEXT, EVALUATION) if not path.exists()]
    if missing:
        return [], [f"Scores of vectors are omitted: there is no {missing[0]}."]
    corpus = read_corpus(TEXT, TEXT_BYTES[quick])
    with tempfile.TemporaryDirectory() as folder:
        corpus.save(Path(folder) / "corpus.npz")
        sources = Sources(
            folder=Path(folder),
            program=PROGRAM.with_name("word2vec_text_sides.py"),
            data=Path(folder) / "corpus.npz",
        )
        rows = [[spec.name, *score_side(spec, sources, corpus)] for spec in SPECS]
    about = (
        f"Scores: one pass over {len(corpus.text):,} words of enwik8 "
        f"({len(corpus.vocabulary):,} of them distinct), about {expected_pairs(corpus):,} pairs, "
        f"rows of {DIM}, batches of {BATCH}; Spearman's correlation with judgements of people, "
        "and the share of analogies whose nearest word is the right one."
    )
    return [{"title": COLUMNS[0], "columns": list(COLUMNS), "rows": rows}], [about]


def score_side(spec: SideSpec, sources: Sources, corpus: Corpus) -> list[str]:
    """Return a text per score; if there are none, the first says why."""
    file = sources.folder / "vectors.npy"
    try:
        one = start(spec, sources)
        with one.side:
            one.side.run(BATCH, expected_pairs(corpus))
            one.side.ask(f"vectors {file}")
    except (OSError, RuntimeError) as error:
        console.print(f"  {spec.name}: {error}", style="red", highlight=False, markup=False)
        return [first_line(str(error)), "", ""]
    vectors = np.load(file)
    place = {word: index for index, word in enumerate(corpus.vocabulary)}
    texts = []
    for name in ("wordsim353.tsv", "simlex999.txt"):
        found, pairs = similarity_score(EVALUATION / name, place, vectors)
        texts.append(f"{found:.3f} of {pairs}")
    share, questions = analogy_score(EVALUATION / "questions-words.txt.gz", place, vectors)
    texts.append(f"{share:.1%} of {questions:,}")
    console.print(f"  {spec.name}: {', '.join(texts)}", highlight=False)
    return texts


def main() -> None:
    options = argument_parser(__doc__ or "").parse_args()
    console.print(f"[bold]Vectors of words[/bold]. {machine()}")
    tables, notes = measure_quality(options.quick)
    for table in tables:
        report(table["title"], ["", *table["columns"][1:]], table["rows"])
    for text in notes:
        console.print(text, highlight=False)
    write_json(options.json, {"tables": tables, "notes": notes})


if __name__ == "__main__":
    main()
