"""The service against its own OpenAPI description, with requests made by schemathesis."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.support.service_process import ServiceProcess
from tests.unit.serving.export.shop_model import exported_shop

DEADLINE_S = 600.0


@pytest.mark.job
@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None, reason="pip install schemathesis"
)
def test_every_answer_is_as_described(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    shutil.copytree(exported_shop()[0], folder / "shop")
    with ServiceProcess(folder, "--engine", "torch", "--timeout", "60") as service:
        result = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run"),
                *(f"{service.url}/openapi.json", "--checks", "all", "--max-examples", "15"),
                *("--generation-deterministic", "--suppress-health-check", "all"),
                *("--request-timeout", "120", "--workers", "1", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-6000:] + result.stderr
        assert httpx.get(service.url + "/readyz").status_code == 200
