"""Words and the numbers that stand for them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["UNKNOWN", "numbered_words"]

UNKNOWN = "<unk>"


def numbered_words(counts: Mapping[str, int], more_than: int) -> dict[str, int]:
    """Word -> number, the most frequent first; UNKNOWN, which stands for all others, is last.

    more_than: rarer words, and words that occur as often as this, have no number.

    >>> numbered_words({"b": 2, "a": 2, "rare": 1, "c": 3}, 1)
    {'c': 0, 'a': 1, 'b': 2, '<unk>': 3}
    """
    kept = [word for word, count in counts.items() if count > more_than and word != UNKNOWN]
    kept.sort(key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate([*kept, UNKNOWN])}
