"""Images of digits, either read from MNIST's files or generated.

Letters: N images.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch

Pictures = tuple[torch.Tensor, torch.Tensor]  # uint8[N, 28, 28], digits int64[N]

# The bars of each digit: top, upper left and right, middle, lower left and right, bottom.
BARS_OF_DIGITS = "1110111 0010010 1011101 1011011 0111010 1101011 1101111 1010010 1111111 1111011"
BARS = (
    (4, 6, 8, 20),
    (5, 14, 7, 9),
    (5, 14, 19, 21),
    (13, 15, 8, 20),
    (14, 23, 7, 9),
    (14, 23, 19, 21),
    (22, 24, 8, 20),
)
"""For each bar: first row, end row, first column, end column; the ends are exclusive."""


def read(folder: Path, part: str) -> Pictures:
    """Read MNIST's "train" or "t10k" from the gzipped IDX files in a folder."""
    pictures = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    digits = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return torch.from_numpy(pictures.copy()), torch.from_numpy(digits.astype(np.int64))


def read_idx(path: Path) -> np.ndarray:
    """Read the array in a gzipped IDX file."""
    content = gzip.decompress(path.read_bytes())
    num_sizes = content[3]
    sizes = np.frombuffer(content, ">u4", num_sizes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_sizes).reshape(sizes)


def draw(count: int, seed: int) -> Pictures:
    """Draw seven-segment digits, shifted by up to 3 pixels, with noise."""
    rng = np.random.default_rng(seed)
    clean = np.zeros((10, 28, 28), np.float32)
    for digit, bars in enumerate(BARS_OF_DIGITS.split()):
        for (top, bottom, left, right), is_on in zip(BARS, bars, strict=True):
            if is_on == "1":
                clean[digit, top:bottom, left:right] = 200.0
    digits = rng.integers(0, 10, count)
    shifts = rng.integers(-3, 4, (count, 2))
    moved = [
        np.roll(clean[digit], shift, (0, 1)) for digit, shift in zip(digits, shifts, strict=True)
    ]
    noisy = np.stack(moved) + rng.normal(0, 40, (count, 28, 28))
    return torch.from_numpy(noisy.clip(0, 255).astype(np.uint8)), torch.from_numpy(digits)
