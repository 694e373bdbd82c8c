"""Trains skip-gram on text files, alone or as one worker of a job, and writes its vectors."""

from __future__ import annotations

import sys

import numpy as np

from sparsefleet import fleet
from sparsefleet.embed import SkipGram

pattern, more, out = sys.argv[1:]
model = SkipGram(
    pattern, dim=12, min_count=2, sample=0, epochs=15, threads=1, negatives=2, exchange_words=500
)
neighbors = [word for word, _ in model.most_similar("cat", topn=3)]
first_words = model.vectors.words
model.extend(more)
np.savez(
    f"{out}.{fleet.worker_index()}.npz",
    words=model.vectors.words,
    vectors=model.vectors.vectors,
    first_words=first_words,
    neighbors=neighbors,
    new_neighbors=[word for word, _ in model.most_similar("sun", topn=2)],
)
