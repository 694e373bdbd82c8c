"""Convert raw lines to MultiSlot text, in the script that a Dataset runs as its pipe command.

This module does not import torch, since every input file starts a new process that imports it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any

__all__ = ["DataGenerator", "MultiSlotDataGenerator", "MultiSlotStringDataGenerator"]

Sample = Iterable[tuple[str, list[Any]]]


class DataGenerator:
    """Reads lines, converts them to samples and writes one sample per line, as subclasses define.

    A sample is a sequence of (slot name, values) with all slots, always in the same order.
    """

    def __init__(self) -> None:
        self._proto_info: list[tuple[str, str]] | None = None
        self.batch_size_ = 32

    def set_batch(self, batch_size: int) -> None:
        """Set the number of samples that `generate_batch` receives per call."""
        if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
            raise ValueError(f"set_batch: batch_size must be an int >= 1, got {batch_size!r}")
        self.batch_size_ = batch_size

    def generate_sample(self, line: str | None) -> Callable[[], Iterable[Sample | None]]:
        """Return a function that yields the samples of a line. Subclasses must override this.

        The function yields None to skip a sample.

        line: the line with its newline; None when called by `run_from_memory`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override generate_sample(line): return a function that "
            "yields [(slot name, [value, ...]), ...]"
        )

    def generate_batch(self, samples: list[Sample]) -> Callable[[], Iterable[Sample]]:
        """Return a function that yields the samples to write for a batch.

        Subclasses may override this.
        """
        return lambda: iter(samples)

    def run_from_stdin(self) -> None:
        """Convert the lines from standard input and write the result to standard output."""
        self._write(sample for line in sys.stdin for sample in self.generate_sample(line)())

    def run_from_memory(self) -> None:
        """Write the samples from `generate_sample(None)` to standard output."""
        self._write(iter(self.generate_sample(None)()))

    def _write(self, samples: Iterator[Sample | None]) -> None:
        group: list[Sample] = []
        for sample in samples:
            if sample is None:
                continue
            group.append(sample)
            if len(group) == self.batch_size_:
                self._write_group(group)
                group = []
        if group:
            self._write_group(group)
        sys.stdout.flush()

    def _write_group(self, group: list[Sample]) -> None:
        for sample in self.generate_batch(group)():
            sys.stdout.write(self._gen_str(sample))

    def _gen_str(self, line: Sample) -> str:
        raise NotImplementedError(
            f"{type(self).__name__} does not define how a sample is written; derive it from "
            "MultiSlotDataGenerator or MultiSlotStringDataGenerator"
        )


class MultiSlotStringDataGenerator(DataGenerator):
    """Writes string values unchanged and unchecked, which is fastest.

    >>> MultiSlotStringDataGenerator()._gen_str([("ads", ["17", "18"]), ("click", ["1"])])
    '2 17 18 1 1\\n'
    """

    def _gen_str(self, line: Sample) -> str:
        return _line_of((len(values), values) for _, values in _pairs_of(line))


class MultiSlotDataGenerator(DataGenerator):
    """Writes ints and floats. A slot has the type "uint64" until its first float, then "float".

    >>> class Clicks(MultiSlotDataGenerator):
    ...     def generate_sample(self, line):
    ...         click, price, *ads = line.split()
    ...         def samples():
    ...             yield [("click", [int(click)]), ("price", [float(price)]),
    ...                    ("ads", [int(ad) for ad in ads])]
    ...         return samples
    >>> clicks = Clicks()
    >>> [clicks._gen_str(sample) for sample in clicks.generate_sample("1 0.5 17 18\\n")()]
    ['1 1 1 0.5 2 17 18\\n']
    >>> clicks._proto_info
    [('click', 'uint64'), ('price', 'float'), ('ads', 'uint64')]
    """

    def _gen_str(self, line: Sample) -> str:
        pairs = _pairs_of(line)
        known = self._proto_info
        if known is not None and len(known) != len(pairs):
            raise ValueError(
                f"a sample has {len(pairs)} slots, but the first sample had {len(known)}; every "
                "sample needs all slots"
            )
        info = []
        texts = []
        for place, (name, values) in enumerate(pairs):
            kind, written = _checked_values(name, values)
            if known is not None:
                if known[place][0] != name:
                    raise ValueError(
                        f"slot {place + 1} of a sample is '{name}', but was '{known[place][0]}' "
                        "in the first sample; keep the same order"
                    )
                kind = "float" if known[place][1] == "float" else kind
            info.append((name, kind))
            texts.append((len(written), written))
        self._proto_info = info
        return _line_of(texts)


def _pairs_of(sample: Any) -> list[tuple[Any, Any]]:
    if isinstance(sample, (str, bytes)) or not isinstance(sample, Iterable):
        raise ValueError(
            f"a sample must be a list of (slot name, values), got {type(sample).__name__}: "
            f"{sample!r:.100}"
        )
    pairs = list(sample)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"a slot of a sample must be (name, values), got {pair!r:.100}")
    return pairs


def _checked_values(name: Any, values: Any) -> tuple[str, list[str]]:
    """Return the slot's type, and its values as strings."""
    if not isinstance(name, str):
        raise ValueError(f"a slot name must be a str, got {name!r:.100}")
    if not isinstance(values, list):
        raise ValueError(f"slot '{name}': values must be a list, got {type(values).__name__}")
    if not values:
        raise ValueError(f"slot '{name}' has no values, expected at least one; pad it")
    kind = "uint64"
    written = []
    for value in values:
        if isinstance(value, Integral):
            written.append(str(int(value)))
        elif isinstance(value, Real) and math.isfinite(value):
            kind = "float"
            written.append(str(value))
        else:
            raise ValueError(
                f"slot '{name}': values must be ints or finite floats, got {value!r:.100}"
            )
    return kind, written


def _line_of(slots: Iterable[tuple[int, list[str]]]) -> str:
    return " ".join(f"{count} {' '.join(values)}" for count, values in slots) + "\n"
