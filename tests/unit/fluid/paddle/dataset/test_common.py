from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sparsefleet.fluid.paddle import dataset
from sparsefleet.fluid.paddle.dataset import common

CONTENT = b"some data"
MD5 = hashlib.md5(CONTENT).hexdigest()


def test_what_is_in_the_cache_is_not_fetched(data_home: Path) -> None:
    (data_home / "mine").mkdir()
    (data_home / "mine" / "a.gz").write_bytes(CONTENT)
    found = common.download("https://nowhere.invalid/a.gz", "mine", MD5)
    assert found == str(data_home / "mine" / "a.gz")


def test_a_file_is_fetched_and_checked(data_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.gz"
    source.write_bytes(CONTENT)
    found = common.download(source.as_uri(), "mine", MD5, "saved.gz")
    assert found == str(data_home / "mine" / "saved.gz")
    assert Path(found).read_bytes() == CONTENT


def test_a_file_with_another_sum_is_replaced(data_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.gz"
    source.write_bytes(CONTENT)
    (data_home / "mine").mkdir()
    (data_home / "mine" / "source.gz").write_bytes(b"cut sho")
    assert Path(common.download(source.as_uri(), "mine", MD5)).read_bytes() == CONTENT


def test_a_download_with_another_sum_is_refused(data_home: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.gz"
    source.write_bytes(b"an error page")
    with pytest.raises(RuntimeError, match=f"expected {MD5}"):
        common.download(source.as_uri(), "mine", MD5)
    assert list((data_home / "mine").iterdir()) == []


def test_without_network_the_error_says_what_to_put_where(data_home: Path) -> None:
    missing = (data_home / "nowhere" / "a.gz").as_uri()
    with pytest.raises(RuntimeError) as caught:
        common.download(missing, "mine", MD5)
    for part in (missing, str(data_home / "mine" / "a.gz"), MD5, "put the file into"):
        assert part in str(caught.value)


def test_a_data_set_that_is_not_here_is_named() -> None:
    with pytest.raises(AttributeError, match="dataset.voc2012 is not supported"):
        dataset.voc2012  # noqa: B018
