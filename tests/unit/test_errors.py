from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from sparsefleet import errors
from sparsefleet.errors import SparseFleetError, WorkerError, code_name_of, error_named

STATUS_HEADER = Path(__file__).parents[2] / "core" / "status" / "status.h"


def native_codes() -> list[str]:
    """Return the names of the native error codes: kNotFound is NOT_FOUND."""
    text = STATUS_HEADER.read_text(encoding="utf-8")
    names = re.findall(r"k(\w+) = [1-9]\d*,", text)
    return ["_".join(re.findall("[A-Z][a-z]*", name)).upper() for name in names]


ALL_CLASSES = [
    value
    for name in errors.__all__
    if isinstance(value := getattr(errors, name), type) and value is not WorkerError
]


@pytest.mark.parametrize("code", native_codes())
def test_every_native_code_has_a_class_of_its_own(code: str) -> None:
    error = error_named(code, "what happened")
    assert isinstance(error, SparseFleetError)
    assert str(error) == "what happened"
    others = [type(error_named(other, "")) for other in native_codes() if other != code]
    assert type(error) not in others


@pytest.mark.parametrize("code", native_codes())
def test_every_class_of_a_code_knows_its_name(code: str) -> None:
    assert code_name_of(error_named(code, "")) == code


def test_errors_without_a_code_take_that_of_the_nearest_base() -> None:
    class OwnShapeError(errors.ShapeError):
        pass

    assert code_name_of(OwnShapeError("")) == "SHAPE_MISMATCH"
    assert code_name_of(PermissionError()) == "IO"
    assert code_name_of(FileNotFoundError()) == "NOT_FOUND"
    assert code_name_of(KeyError()) is None


def test_unknown_code_becomes_internal_error_naming_it() -> None:
    error = error_named("CODE_999", "from the future")
    assert isinstance(error, errors.InternalError)
    assert "999" in str(error)
    assert "from the future" in str(error)


@pytest.mark.parametrize("kind", ALL_CLASSES)
def test_errors_survive_pickling(kind: type[SparseFleetError]) -> None:
    error = kind("table 'ads': gone")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "table 'ads': gone"


def test_worker_error_names_rank_and_cause_and_survives_pickling() -> None:
    error = WorkerError({3: ValueError("bad batch"), 1: errors.PeerLostError("server 0 is gone")})
    again = pickle.loads(pickle.dumps(error))
    assert list(again.failures) == [1, 3]
    assert isinstance(again.failures[1], errors.PeerLostError)
    assert str(again) == str(error)
    assert str(again).startswith("2 workers failed: worker 1: PeerLostError")


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.ConfigError, ValueError),
        (errors.ShapeError, ValueError),
        (errors.DeadlineError, TimeoutError),
        (errors.PeerLostError, ConnectionError),
        (errors.NotFoundError, LookupError),
        (errors.IoError, OSError),
    ],
)
def test_errors_are_also_the_builtin_of_the_same_meaning(
    kind: type[Exception], builtin: type[Exception]
) -> None:
    assert issubclass(kind, builtin)
    assert issubclass(kind, SparseFleetError)
