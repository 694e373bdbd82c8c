from __future__ import annotations

import io
import itertools
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.unit.fluid.paddle.dataset.conftest import Put, idx_of, tar_of

from sparsefleet.fluid.paddle.dataset import cifar, flowers, image, mnist


def test_mnist_gives_pixels_of_minus_one_to_one(put: Put) -> None:
    images = np.arange(3 * 4).reshape(3, 2, 2) * 20
    for part, count in (("TRAIN", 3), ("TEST", 2)):
        put(mnist, f"{part}_IMAGE_URL", f"{part}_IMAGE_MD5", "mnist", idx_of(images[:count]))
        labels = np.arange(count)
        put(mnist, f"{part}_LABEL_URL", f"{part}_LABEL_MD5", "mnist", idx_of(labels))
    samples = list(mnist.train()())
    assert [label for _, label in samples] == [0, 1, 2]
    np.testing.assert_allclose(samples[1][0], images[1].ravel() / 127.5 - 1, rtol=1e-6)
    assert samples[0][0].dtype == np.float32
    assert len(list(mnist.test()())) == 2


def test_mnist_refuses_other_files(put: Put) -> None:
    put(mnist, "TEST_IMAGE_URL", "TEST_IMAGE_MD5", "mnist", idx_of(np.arange(3)))
    put(mnist, "TEST_LABEL_URL", "TEST_LABEL_MD5", "mnist", idx_of(np.arange(3)))
    with pytest.raises(ValueError, match="starts with 2051, found 2049"):
        next(mnist.test()())


def test_cifar_gives_pixels_of_zero_to_one(put: Put) -> None:
    record = bytes([7, *([255] * 3072)])
    files = {"x/data_batch_1.bin": record * 2, "x/data_batch_2.bin": record}
    archive = tar_of({**files, "x/test_batch.bin": record})
    put(cifar, "CIFAR10_URL", "CIFAR10_MD5", "cifar", archive)
    samples = list(cifar.train10()())
    assert len(samples) == 3
    assert samples[0][1] == 7
    assert samples[0][0].tolist() == [1.0] * 3072
    assert len(list(itertools.islice(cifar.test10(cycle=True)(), 5))) == 5


def test_cifar_100_has_the_fine_class(put: Put) -> None:
    record = bytes([3, 42, *([0] * 3072)])
    archive = tar_of({"x/train.bin": record, "x/test.bin": record})
    put(cifar, "CIFAR100_URL", "CIFAR100_MD5", "cifar", archive)
    assert [label for _, label in cifar.train100()()] == [42]
    assert len(list(cifar.test100()())) == 1


def picture_of(pixels: np.ndarray) -> bytes:
    made = io.BytesIO()
    pytest.importorskip("PIL.Image", reason="pip install pillow").fromarray(pixels).save(
        made, "PNG"
    )
    return made.getvalue()


def test_pictures_are_loaded_as_bgr_and_cropped_in_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((4, 8, 3), np.uint8)
    pixels[:, 2:6] = (250, 20, 10)  # red, green, blue
    (tmp_path / "a.png").write_bytes(picture_of(pixels))
    loaded = image.load_image(str(tmp_path / "a.png"))
    assert loaded[0, 3].tolist() == [10, 20, 250]
    assert image.load_image(str(tmp_path / "a.png"), is_color=False).shape == (4, 8)
    assert image.resize_short(loaded, 2).shape == (2, 4, 3)
    made = image.simple_transform(loaded, 4, 4, is_train=False, mean=[10.0, 20.0, 50.0])
    assert made.shape == (3, 4, 4)
    assert made[:, 1, 1].tolist() == [0.0, 0.0, 200.0]
    assert image.simple_transform(loaded, 4, 2, is_train=True).shape == (3, 2, 2)


def test_pictures_of_an_archive_are_written_in_batches(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of({f"{name}.jpg": name.encode() for name in "abcd"}))
    listed = image.batch_images_from_tar(str(archive), "t", {"a.jpg": 1, "b.jpg": 2, "d.jpg": 3}, 2)
    batches = [pickle.loads(Path(line).read_bytes()) for line in Path(listed).read_text().split()]
    assert batches == [{"label": [1, 2], "data": [b"a", b"b"]}, {"label": [3], "data": [b"d"]}]


def test_flowers_are_divided_into_three_parts(put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.full((230, 240, 3), 100, np.uint8)
    files = {f"jpg/image_{number:05d}.jpg": picture_of(pixels) for number in (1, 2, 3, 4)}
    for name, content in (("DATA", tar_of(files)), ("LABEL", b"labels"), ("SETID", b"parts")):
        put(flowers, f"{name}_URL", f"{name}_MD5", "flowers", content)
    rows = {"labels": [[5, 6, 7, 8]], "tstid": [[1, 4]], "trnid": [[2]], "valid": [[3]]}
    reader = SimpleNamespace(loadmat=lambda _: {n: np.array(row) for n, row in rows.items()})
    monkeypatch.setitem(sys.modules, "scipy.io", reader)
    found = list(flowers.train(use_xmap=False)())
    assert [label for _, label in found] == [4, 7]
    assert found[0][0].shape == (3 * 224 * 224,)
    assert [label for _, label in flowers.test()()] == [5]
    assert [label for _, label in flowers.valid(mapper=lambda sample: sample)()] == [6]
    assert len(list(itertools.islice(flowers.train(cycle=True, use_xmap=False)(), 5))) == 5
