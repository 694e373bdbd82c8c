from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.unit.fluid.paddle.dataset.conftest import Put, idx_of, tar_of

from sparsefleet.fluid.paddle.dataset import cifar, mnist


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
    with pytest.raises(ValueError, match="starts with 2049, expected 2051"):
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
