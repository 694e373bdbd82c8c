"""A worker of the job of bench/skip_gram.py: trains on its share of the files, with one thread.

    python bench/skip_gram_worker.py FILES... --epochs 4 --exchange-words 50000 --out FOLDER

Writes when each epoch began and ended, and the first worker its vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

from sparsefleet.embed import SkipGram


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--exchange-words", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    model = SkipGram(
        options.files,
        dim=options.dim,
        threads=1,
        epochs=options.epochs,
        exchange_words=options.exchange_words,
        train=False,
    )
    times = [time.time()]
    model.train(on_epoch=lambda *_: times.append(time.time()))
    index = os.environ["SPARSEFLEET_INDEX"]
    (options.out / f"times.{index}.json").write_text(json.dumps(times))
    if index == "0":
        model.save(options.out / "vectors.bin", binary=True)


if __name__ == "__main__":
    main()
