from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest

from sparsefleet import optim
from sparsefleet.errors import ConfigError

SPEC_HEADER = Path(__file__).parents[3] / "core" / "optimizer" / "optimizer_spec.h"
ALL = [getattr(optim, name) for name in optim.__all__ if name != "Optimizer"]


def native_struct(name: str) -> str:
    text = SPEC_HEADER.read_text(encoding="utf-8")
    found = re.search(rf"(?:struct|enum class) {name}\b.*?{{(.*?)\n}};", text, re.DOTALL)
    assert found is not None
    return found.group(1)


def native_kinds() -> set[str]:
    names = re.findall(r"^\s*k(\w+)", native_struct("OptimizerKind"), re.MULTILINE)
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower() for name in names}


def test_every_native_optimizer_has_one_description() -> None:
    assert {kind.kind for kind in ALL} == native_kinds()
    assert len(ALL) == len(native_kinds())


@pytest.mark.parametrize("kind", ALL)
def test_native_fields_are_those_of_the_header(kind: type[optim.Optimizer]) -> None:
    header = native_struct("OptimizerSpec")
    known = set(re.findall(r"(?:double|bool) (\w+) =", header)) | {"kind"}
    fields = kind().native_fields()
    assert set(fields) <= known
    assert fields["kind"] == kind.kind


@pytest.mark.parametrize("kind", ALL)
def test_every_field_but_the_flags_reaches_native_code(kind: type[optim.Optimizer]) -> None:
    before = kind().native_fields()
    for field in dataclasses.fields(kind):
        value = getattr(kind(), field.name)
        if isinstance(value, bool):
            changed = kind(**{field.name: not value})
        elif isinstance(value, tuple):
            changed = kind(**{field.name: (0.5, 0.6)})
        else:
            changed = kind(**{field.name: -0.25 if value < 0 else 0.125})
        assert changed.native_fields() != before, field.name


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("value", [math.nan, math.inf, -0.1, "0.1", None, True])
def test_bad_learning_rate_is_refused_naming_field_found_and_wanted(
    kind: type[optim.Optimizer], value: object
) -> None:
    with pytest.raises(ConfigError) as caught:
        kind(lr=value)  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith(f"{kind.__name__}.lr must be")
    assert message.endswith(f"got {value!r}")


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (optim.Momentum, {"momentum": 1.0}),
        (optim.Momentum, {"momentum": 0.0, "nesterov": True}),
        (optim.Momentum, {"nesterov": 1}),
        (optim.Adagrad, {"eps": 0.0}),
        (optim.Adagrad, {"initial_accumulator": -1.0}),
        (optim.RowwiseAdagrad, {"eps": -1e-8}),
        (optim.DecayedAdagrad, {"decay": 1.5}),
        (optim.RMSprop, {"alpha": 1.0}),
        (optim.RMSprop, {"centered": "yes"}),
        (optim.Adam, {"betas": (0.9, 1.0)}),
        (optim.Adam, {"betas": 0.9}),
        (optim.Adamax, {"betas": (0.9,)}),
        (optim.Adadelta, {"rho": 1.0}),
        (optim.FluidRMSProp, {"eps": 0.0}),
        (optim.Lars, {"coefficient": -1.0}),
        (optim.Lamb, {"betas": (0.9, 1.0)}),
        (optim.Ftrl, {"lr_power": 0.5}),
        (optim.Ftrl, {"lr": 0.0}),
        (optim.SGD, {"l1": -1.0}),
        (optim.SGD, {"l2": math.nan}),
    ],
)
def test_bad_field_is_refused(kind: type[optim.Optimizer], fields: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}\.\w+ must be"):
        kind(**fields)  # type: ignore[arg-type]


def test_ftrl_puts_l1_and_l2_into_the_proximal_step() -> None:
    fields = optim.Ftrl(l1=0.1, l2=0.2).native_fields()
    assert (fields["ftrl_l1"], fields["ftrl_l2"]) == (0.1, 0.2)
    assert (fields["l1"], fields["l2"]) == (0.0, 0.0)


def test_defaults_are_those_of_torch() -> None:
    import torch

    weight = [torch.nn.Parameter(torch.zeros(1))]
    adam = torch.optim.Adam(weight).defaults
    assert (optim.Adam().lr, optim.Adam().betas, optim.Adam().eps) == (
        adam["lr"],
        adam["betas"],
        adam["eps"],
    )
    rmsprop = torch.optim.RMSprop(weight).defaults
    for name in ("lr", "alpha", "eps", "momentum", "centered"):
        assert getattr(optim.RMSprop(), name) == rmsprop[name]
    adagrad = torch.optim.Adagrad(weight).defaults
    assert (optim.Adagrad().lr, optim.Adagrad().eps) == (adagrad["lr"], adagrad["eps"])
    adamax = torch.optim.Adamax(weight).defaults
    for name in ("lr", "betas", "eps"):
        assert getattr(optim.Adamax(), name) == adamax[name]


def test_descriptions_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        optim.SGD().lr = 1.0  # type: ignore[misc]
