"""Load images as BGR arrays [height, width, 3]; resize, crop and flip them.

Images are decoded and resized with Pillow (`pip install pillow`).
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "batch_images_from_tar",
    "center_crop",
    "left_right_flip",
    "load_and_transform",
    "load_image",
    "load_image_bytes",
    "random_crop",
    "resize_short",
    "simple_transform",
    "to_chw",
]

Picture = NDArray[Any]


def load_image_bytes(bytes: bytes, is_color: bool = True) -> Picture:
    """Decode an image to BGR, uint8[height, width, 3], or to grayscale, uint8[height, width]."""
    with _pillow().open(io.BytesIO(bytes)) as opened:
        pixels = np.asarray(opened.convert("RGB" if is_color else "L"))
    return np.ascontiguousarray(pixels[..., ::-1]) if is_color else pixels.copy()


def load_image(file: str, is_color: bool = True) -> Picture:
    """Read an image from a file; see `load_image_bytes`."""
    with open(file, "rb") as opened:
        return load_image_bytes(opened.read(), is_color)


def resize_short(im: Picture, size: int) -> Picture:
    """Resize an image so that its shorter side has `size` pixels."""
    height, width = im.shape[:2]
    short = min(height, width)
    sides = (size * width // short, size * height // short)
    image = _pillow()
    return np.asarray(image.fromarray(im).resize(sides, image.Resampling.BICUBIC))


def to_chw(im: Picture, order: Sequence[int] = (2, 0, 1)) -> Picture:
    """Move the channel axis in front of height and width."""
    if im.ndim != len(order):
        raise AssertionError(
            f"an image with {im.ndim} axes cannot be transposed to the order {order}"
        )
    transposed: Picture = im.transpose(order)
    return transposed


def center_crop(im: Picture, size: int, is_color: bool = True) -> Picture:
    """Return the center of an image, `size` by `size`."""
    del is_color
    top, left = ((side - size) // 2 for side in im.shape[:2])
    return im[top : top + size, left : left + size]


def random_crop(im: Picture, size: int, is_color: bool = True) -> Picture:
    """Return a random part of an image, `size` by `size`, chosen with NumPy's generator."""
    del is_color
    top, left = (np.random.randint(0, side - size + 1) for side in im.shape[:2])
    return im[top : top + size, left : left + size]


def left_right_flip(im: Picture, is_color: bool = True) -> Picture:
    """Return the mirror image."""
    del is_color
    return im[:, ::-1]


def simple_transform(
    im: Picture,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: Any = None,
) -> NDArray[np.float32]:
    """Resize and crop an image, move the color axis to the front, and subtract the mean.

    is_train: crop a random part and flip half of the images; otherwise crop the center.
    mean: one number per color, or one per pixel.
    """
    im = resize_short(im, resize_size)
    if is_train:
        im = random_crop(im, crop_size, is_color)
        if np.random.randint(2) == 0:
            im = left_right_flip(im, is_color)
    else:
        im = center_crop(im, crop_size, is_color)
    made = (to_chw(im) if im.ndim == 3 else im).astype(np.float32)
    if mean is None:
        return made
    given = np.asarray(mean, np.float32)
    return made - (given[:, None, None] if given.ndim == 1 and is_color else given)


def load_and_transform(
    filename: str,
    resize_size: int,
    crop_size: int,
    is_train: bool,
    is_color: bool = True,
    mean: Any = None,
) -> NDArray[np.float32]:
    """Read an image and apply `simple_transform`."""
    picture = load_image(filename, is_color)
    return simple_transform(picture, resize_size, crop_size, is_train, is_color, mean)


def batch_images_from_tar(
    data_file: str, dataset_name: str, img2label: Mapping[str, int], num_per_batch: int = 1024
) -> str:
    """Write an archive's labeled images to files of `num_per_batch` images.

    Returns the path of a file that lists them.

    Each file is a pickled dict with `label` and `data`, the encoded images. Files from an earlier
    call are reused.
    """
    folder = f"{data_file}_{dataset_name}_batch"
    listed = os.path.join(folder, f"{dataset_name}.txt")
    if os.path.exists(listed):
        return listed
    os.makedirs(folder, exist_ok=True)
    written: list[str] = []
    data: list[bytes] = []
    labels: list[int] = []

    def write() -> None:
        path = os.path.join(folder, f"batch_{len(written)}")
        with open(path, "wb") as file:
            pickle.dump({"label": labels, "data": data}, file, protocol=2)
        written.append(os.path.abspath(path))
        data.clear()
        labels.clear()

    with tarfile.open(data_file) as archive:
        for member in archive:
            opened = archive.extractfile(member) if member.name in img2label else None
            if opened is None:
                continue
            data.append(opened.read())
            labels.append(img2label[member.name])
            if len(data) == num_per_batch:
                write()
    if data:
        write()
    with open(listed, "w", encoding="utf-8") as file:
        file.writelines(f"{path}\n" for path in written)
    return listed


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(
            "decoding images requires the pillow package; run `pip install pillow`"
        ) from error
