"""Skip-gram with negative sampling as an estimator that takes sentences and returns vectors.

In shapes, V is the number of words, D the width of a vector, and W the width padded for the native
loop.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.embed.corpus import Corpus, Encoded, Source, Vocabulary, open_corpus
from sparsefleet.embed.server_exchange import ServerExchange, SharedCounts
from sparsefleet.embed.word_vectors import WordVectors
from sparsefleet.errors import ConfigError
from sparsefleet.field_checks import require, require_int, require_not_negative, require_positive
from sparsefleet.fleet._process import fleet as process_fleet
from sparsefleet.store import RemoteStore

__all__ = ["SkipGram", "SkipGramConfig"]

_log = logging.getLogger("sparsefleet.embed")


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipGramConfig:
    """Settings for skip-gram training. Names and defaults match gensim's where possible."""

    dim: int = 100
    """Width of the vectors."""

    window: int = 5
    """Maximum number of words to each side that count as context."""

    shrink_windows: bool = True
    """Draw the size of each window from 1 to `window`, which gives nearby words more weight."""

    negatives: int = 5
    """Number of noise words for each position, shared by all pairs in the window."""

    noise_power: float = 0.75
    """Noise words are drawn in proportion to their count raised to this power."""

    min_count: int = 5
    """Drop words that occur fewer times than this."""

    max_words: int = 0
    """Keep at most this many words, the most frequent ones; 0 keeps all."""

    sample: float = 1e-3
    """Downsample words that make up a larger share of the text than this; 0 keeps all."""

    epochs: int = 5
    """Passes over the sentences."""

    lr: float = 0.025
    """Learning rate at the start; it falls linearly over all epochs."""

    min_lr: float = 1e-4
    """Learning rate at the end of the last epoch."""

    threads: int = 0
    """Training threads; 0 means one per core. With one thread, results are reproducible bit for
    bit.
    """

    locked: bool = False
    """Lock rows while a window changes them. Locking is slower; without it, as in gensim, threads
    occasionally lose an update, which does not hurt quality.
    """

    seed: int = 1
    """Seed for initial values, windows and noise."""

    exchange_words: int = 50_000
    """With servers, the number of words this worker trains between two exchanges with them, up to
    the end of a sentence. A smaller number keeps workers closer together and costs more traffic.
    """

    def __post_init__(self) -> None:
        for name, least in (("dim", 1), ("window", 1), ("negatives", 1), ("min_count", 1)):
            require_int(self, name, least, 100_000)
        require_int(self, "max_words", 0, 2**32 - 2)
        require_int(self, "epochs", 1, 2**31 - 1)
        require_int(self, "threads", 0, 1024)
        require_int(self, "seed", 0, 2**63 - 1)
        require_int(self, "exchange_words", 1, 2**62)
        require_not_negative(self, "sample")
        require_positive(self, "lr")
        require_not_negative(self, "min_lr")
        require(self.min_lr <= self.lr, self, "min_lr", f"at most lr ({self.lr})")


class SkipGram:
    """Learns a vector for each word, item or user from the sequences in which it occurs.

    sentences: text files, one sentence per line (a path, a pattern or a list; .gz files are
        decompressed), or an iterable of lists of strings or 64-bit integers that can be read more
        than once.

    Trains on construction unless `train=False`; `vectors` holds the result. Under `sparsefleet
    launch` with servers, every worker trains on its share of the files, or on the sentences passed
    to it, and rows live on the servers in the tables `name` and `name.contexts`.

    >>> one, other = ["ann", "bob", "cid"], ["xia", "yan", "zoe"]
    >>> walks = [one + one[::-1], other + other[::-1]] * 200
    >>> model = SkipGram(walks, dim=8, negatives=2, min_count=1, sample=0, threads=1, epochs=20)
    >>> sorted(word for word, _ in model.most_similar("ann", topn=2))
    ['bob', 'cid']
    """

    def __init__(
        self,
        sentences: Source,
        config: SkipGramConfig | None = None,
        *,
        name: str = "words",
        train: bool = True,
        **settings: Any,
    ) -> None:
        if config is not None and settings:
            raise ConfigError(
                f"pass either a SkipGramConfig or its fields, got both: {', '.join(settings)}"
            )
        try:
            self.config = SkipGramConfig(**settings) if config is None else config
        except TypeError:
            known = ", ".join(SkipGramConfig.__slots__)
            raise ConfigError(
                f"SkipGram got an unknown setting among {', '.join(settings)}; its settings are "
                f"{known}"
            ) from None
        self._servers = _Servers.of_environment(name)
        self._corpus = self._open(sentences)
        self.loss = float("nan")
        """Loss per pair in the last epoch, including noise pairs."""
        self.words_per_s = 0.0
        """Number of words this process trained on per second."""
        self._vectors: WordVectors | None = None
        self._vocabulary = self._corpus.count()
        self._agree(self._vocabulary, self._vocabulary)
        self._planes = self._first_values(len(self._vocabulary.counts), self.config.seed)
        if train:
            self.train()

    @property
    def vectors(self) -> WordVectors:
        """The vectors of the words, most frequent first."""
        if self._vectors is None:
            rows = self._planes[0][:, : self.config.dim]
            self._vectors = WordVectors(self._vocabulary.words(), rows)
        return self._vectors

    def most_similar(self, positive: Any, negative: Any = (), topn: int = 10) -> list[Any]:
        """Return the nearest words; see `WordVectors.most_similar`."""
        return self.vectors.most_similar(positive, negative, topn)

    def save(self, path: str | os.PathLike[str], *, binary: bool = False) -> None:
        """Write the vectors in word2vec's text or binary format."""
        self.vectors.save(path, binary=binary)

    def train(self, on_epoch: Callable[[int, float], None] | None = None) -> None:
        """Train for all epochs again, starting from the current values.

        on_epoch: called after each epoch with its number, from 1, and its loss per pair.
        """
        run = _Run(self.config, self._vocabulary, self._corpus, self._planes)
        if self._servers is not None:
            self._servers.join(run, self._vocabulary, self._planes, self.config.dim)
        begun = monotonic()
        with ThreadPoolExecutor(self.threads, "skip-gram") as pool:
            for epoch in range(1, self.config.epochs + 1):
                self.loss = run.epoch(epoch, pool, self.threads)
                _log.info("epoch %d of %d: loss %.4f", epoch, self.config.epochs, self.loss)
                if on_epoch is not None:
                    on_epoch(epoch, self.loss)
        self.words_per_s = run.done_words / max(monotonic() - begun, 1e-9)
        if run.exchange is not None:
            run.exchange.finish(run.touched)
        self._vectors = None

    def extend(self, sentences: Source, *, train: bool = True) -> None:
        """Continue with other sentences: new words get vectors, and known words keep theirs.

        Trains for all epochs on these sentences only, unless `train=False`. Counts add up over all
        sentences so far. Words dropped as too rare before start again from zero; with servers,
        which keep all counts, they do not. With servers, must be called by all workers.

        If it raises before it trains, the model is unchanged and the call can be repeated.
        """
        corpus = self._open(sentences)
        if corpus.has_ids != self._corpus.has_ids:
            kinds = ("strings", "integers")
            raise ConfigError(
                f"the words are {kinds[self._corpus.has_ids]}, but the new sentences contain "
                f"{kinds[corpus.has_ids]}: pass the same kind"
            )
        counted = corpus.count()
        vocabulary = self._vocabulary.plus(counted)
        try:
            self._agree(counted, vocabulary)
            planes = self._moved_rows(vocabulary.keys())
        except BaseException:
            if self._servers is not None:
                self._servers.counts.undo()
            raise
        self._corpus, self._vocabulary, self._planes = corpus, vocabulary, planes
        self._vectors = None
        if train:
            self.train()

    @property
    def threads(self) -> int:
        """The number of training threads in use."""
        return self.config.threads or len(os.sched_getaffinity(0))

    def _open(self, sentences: Source) -> Corpus:
        corpus = open_corpus(sentences)
        if self._servers is None or not corpus.files:
            return corpus
        return Corpus(files=tuple(self._servers.share_of(corpus.files)))

    def _agree(self, counted: Vocabulary, vocabulary: Vocabulary) -> None:
        """Fix the vocabulary, which contains `counted`, with the counts of all workers."""
        config = self.config
        if self._servers is not None:
            # A word that is rare here may be frequent over all workers, so sum before filtering.
            self._servers.counts.add(counted, vocabulary)
        vocabulary.keep(config.min_count, config.max_words)
        if not len(vocabulary.counts):
            raise ConfigError(
                f"no word occurs min_count={config.min_count} times or more among "
                f"{vocabulary.total_words:,} words: provide more text or lower min_count"
            )

    def _first_values(
        self, num_words: int, seed: int | list[int]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        dim, step = self.config.dim, _core.SKIP_GRAM_ROW_STEP
        shape = (num_words, -(-dim // step) * step)
        vectors, contexts = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        if self._servers is None:
            drawn = np.random.default_rng(seed).random((num_words, dim), np.float32)
            vectors[:, :dim] = (drawn - 0.5) / dim
        return vectors, contexts

    def _moved_rows(
        self, keys: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the rows of words with these keys, with first values for those without any."""
        old_keys = self._vocabulary.keys()
        planes = self._first_values(len(keys), [self.config.seed, len(old_keys)])
        _, before, after = np.intersect1d(old_keys, keys, assume_unique=True, return_indices=True)
        for plane, rows in zip(planes, self._planes, strict=True):
            plane[after] = rows[before]
        return planes


class _Servers:
    """Connects this worker to the servers of its job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.role = process_fleet.role
        self.store = RemoteStore(
            list(self.role.server_endpoints), name=f"{name}-worker-{self.role.index}"
        )
        self.counts = SharedCounts(self.store, self.role, name)

    @staticmethod
    def of_environment(name: str) -> _Servers | None:
        if not process_fleet.is_initialized:
            process_fleet.init()
        role = process_fleet.role
        if role.is_server:
            process_fleet.run_server()
            raise SystemExit(0)
        return _Servers(name) if role.server_endpoints else None

    def share_of(self, files: Sequence[str]) -> list[str]:
        mine = process_fleet.split_files(list(files))
        if not mine:
            raise ConfigError(
                f"worker {self.role.index} of {self.role.worker_num} has no file: there are only "
                f"{len(files)}; split the text into more files"
            )
        return mine

    def join(
        self,
        run: _Run,
        vocabulary: Vocabulary,
        planes: Sequence[NDArray[np.float32]],
        dim: int,
    ) -> None:
        run.exchange = ServerExchange(
            self.store, self.role, self.name, vocabulary.keys(), planes, dim=dim
        )
        run.touched = [np.zeros(len(plane), np.uint8) for plane in planes]


class _Run:
    """One training run: its progress, and the blocks that its threads process."""

    def __init__(
        self,
        config: SkipGramConfig,
        vocabulary: Vocabulary,
        corpus: Corpus,
        planes: Sequence[NDArray[np.float32]],
    ) -> None:
        self._config = config
        self._vocabulary = vocabulary
        self._corpus = corpus
        self._planes = planes
        self._model = _core.SkipGram.create(
            np.ascontiguousarray(vocabulary.counts),
            planes[0].shape[1],
            window=config.window,
            negatives=config.negatives,
            shrink_windows=config.shrink_windows,
            sample=config.sample,
            noise_power=config.noise_power,
            locked=config.locked,
        )
        self._lock = threading.Lock()
        self._next_exchange = config.exchange_words
        self._all_words = vocabulary.own_words * config.epochs
        self.done_words = 0
        self.exchange: ServerExchange | None = None
        self.touched: Sequence[NDArray[np.uint8]] = ()

    def epoch(self, epoch: int, pool: ThreadPoolExecutor, threads: int) -> float:
        """Train one pass over the sentences; return the loss per pair."""
        blocks = enumerate(self._corpus.blocks())
        sums = [0.0, 0.0]
        running = [pool.submit(self._work, epoch, blocks, sums) for _ in range(threads)]
        for each in running:
            each.result()
        return sums[0] / max(sums[1], 1.0)

    def _work(self, epoch: int, blocks: Iterator[tuple[int, Any]], sums: list[float]) -> None:
        while True:
            with self._lock:
                number, block = next(blocks, (0, None))
            if block is None:
                return
            encoded = self._vocabulary.encode(block, self._corpus.form)
            parts = [encoded]
            if self.exchange is not None:
                parts = split_block(encoded, self._config.exchange_words)
            seeds = np.random.SeedSequence((self._config.seed, epoch, number))
            states = seeds.generate_state(len(parts), np.uint64)
            for (words, ends, total), seed in zip(parts, states.tolist(), strict=True):
                _, _, loss, pairs = self._model.train(
                    words, ends, self._planes[0], self._planes[1], self._rate(), seed, *self.touched
                )
                with self._lock:
                    sums[0] += loss
                    sums[1] += pairs
                    self.done_words += total
                    if self.exchange is not None and self.done_words >= self._next_exchange:
                        self._next_exchange = self.done_words + self._config.exchange_words
                        self.exchange.exchange(self.touched)

    def _rate(self) -> float:
        """Return the learning rate for the current fraction of the training run."""
        config = self._config
        progress = min(1.0, self.done_words / max(1, self._all_words))
        return config.lr - (config.lr - config.min_lr) * progress


def split_block(block: Encoded, most_words: int) -> list[Encoded]:
    """Cut a block after sentences into parts of about `most_words` words, unknown ones included."""
    words, ends, total = block
    if total <= most_words or len(ends) < 2:  # without known words, there is no sentence
        return [block]
    marks = np.arange(1, -(-total // most_words)) * (len(words) * most_words / total)
    cuts = np.unique([0, *(np.searchsorted(ends, marks) + 1), len(ends)])
    parts = []
    for begin, end in itertools.pairwise(cuts[cuts <= len(ends)]):
        first = int(ends[begin - 1]) if begin else 0
        last = int(ends[end - 1])
        counted = total * last // len(words) - total * first // len(words)
        parts.append((words[first:last], ends[begin:end] - np.uint64(first), counted))
    return parts
