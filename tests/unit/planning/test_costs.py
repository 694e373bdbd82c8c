"""Files with the costs of a machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.planning import load_machine, save_machine
from sparsefleet.planning.calibration import _fit, _Measured, local_server
from sparsefleet.planning.costs import NEAR_BYTES, OPERATIONS, TRANSPORTS


def test_a_saved_machine_is_loaded_unchanged(tmp_path: Path) -> None:
    machine = load_machine("amd-epyc")
    save_machine(machine, tmp_path / "own.json")
    assert load_machine(tmp_path / "own.json") == machine


def test_reference_machines_name_their_processor_and_cost_something() -> None:
    machine = load_machine("amd-epyc")
    assert "EPYC" in machine.cpu
    for transport in TRANSPORTS:
        for name in OPERATIONS:
            for servers in (1, 2):
                cost = machine.of(transport, servers)[name]
                assert cost.client.of(keys=1000, size=1e5) > 0 < cost.server.of(keys=1000, size=1e5)


def test_the_client_of_a_single_server_neither_sorts_keys_nor_copies_rows() -> None:
    machine = load_machine("amd-epyc")
    for name in ("pull", "push"):
        one, several = (
            machine.of("host", servers)[name].client.of(requests=0, keys=2500, size=3e6)
            for servers in (1, 2)
        )
        assert one < 0.7 * several
    assert machine.of("host", 3) == machine.of("host", 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "calibrate again"),
        ('{"format": 9}', "format 9, expected 2"),
        ('{"format": 1}', "format 1, expected 2"),
        ('{"format": 2}', "calibrate again"),
    ],
)
def test_a_wrong_machine_file_is_named_with_what_to_do(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "own.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        load_machine(path)
    with pytest.raises(ConfigError, match="neither a file nor one of amd-epyc"):
        load_machine("no-such")


def test_costs_are_fitted_from_measured_sizes() -> None:
    points = []
    for keys in (10, 1000, 10_000):
        for row in (40, 264, 1032):
            size = keys * row
            seconds = 2e-5 + 5e-8 * keys + 3e-10 * size + 2e-10 * max(0, size - NEAR_BYTES)
            points.append((_Measured(1, keys, size, 0, 0, 0), seconds))
    found = _fit(points)
    assert found.request_s == pytest.approx(2e-5)
    assert found.key_s == pytest.approx(5e-8)
    assert found.byte_s == pytest.approx(3e-10)
    assert found.far_byte_s == pytest.approx(2e-10)
    assert found.of(keys=10_000, size=10_320_000) == pytest.approx(points[-1][1])


def test_a_server_for_calibrating_is_a_process_that_ends() -> None:
    with local_server("auto", "ab" * 32, 0, 1) as (endpoint, pid):
        assert endpoint.startswith("127.0.0.1:")
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_the_data_of_machines_is_valid_json() -> None:
    from sparsefleet.planning import costs

    for path in Path(costs.__file__).parent.glob("machines/*.json"):
        assert json.loads(path.read_text())["name"] == path.stem
