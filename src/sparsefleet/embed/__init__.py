"""Embeddings learned from sequences alone: skip-gram for words, items or users."""

from sparsefleet.embed.skip_gram import SkipGram, SkipGramConfig
from sparsefleet.embed.word_vectors import WordVectors

__all__ = ["SkipGram", "SkipGramConfig", "WordVectors"]
