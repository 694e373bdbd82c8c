"""`sparsefleet push-rows`, against a real Redis."""

from __future__ import annotations

import json

import pytest
from tests.support.redis_process import RedisProcess
from tests.unit.serving.small_export import exported_pairs

from sparsefleet.cli.main import main


@pytest.fixture
def url(redis: RedisProcess) -> str:
    return redis.url


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["push-rows", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_versions_are_pushed_listed_activated_rolled_back_and_deleted(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (first, one), (second, two) = exported_pairs(), exported_pairs(seed=1)
    assert run(capsys, str(first), url, "--version", "day1", "--activate")[:2] == (
        0,
        f"version {one.digest} (day1) is pushed and active: 100 rows\n",
    )
    code, out, _ = run(capsys, str(second), url, "--json")
    assert (code, json.loads(out)["digest"]) == (0, two.digest)
    _, out, _ = run(capsys, url, "--list")
    assert [line.endswith("active") for line in out.splitlines()] == [False, True]
    assert run(capsys, url, "--activate", two.digest)[0] == 0
    assert json.loads(run(capsys, url, "--list", "--json")[1])["active"] == two.digest
    assert run(capsys, url, "--rollback")[1] == (
        f"version {one.digest} (day1) is active again: 100 rows\n"
    )
    code, _, err = run(capsys, url, "--rollback")
    assert (code, "no previously active version" in err) == (1, True)
    assert run(capsys, url, "--delete", two.digest)[0] == 0
    code, _, err = run(capsys, url, "--activate", two.digest)
    assert (code, "it has day1" in err) == (1, True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["REDIS"], "nothing to do"),
        (["a", "b", "REDIS"], "expected [MODEL_DIR]"),
        (["a"], "expected [MODEL_DIR]"),
        (["a", "REDIS", "--list"], "do not push"),
        (["a", "REDIS", "--activate", "b"], "do not push"),
        (["REDIS", "--delete", "day1"], "is active"),
    ],
)
def test_invalid_command_lines_end_with_2(
    words: list[str], message: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, str(exported_pairs()[0]), url, "--version", "day1", "--activate")
    with pytest.raises(SystemExit) as ended:
        main(["push-rows", *(url if word == "REDIS" else word for word in words)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_is_not_there_ends_with_1_and_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, str(exported_pairs()[0]), "redis://127.0.0.1:1", "--timeout", "2")
    assert code == 1
    assert err.count("\n") == 1
    assert "cannot be reached" in err
