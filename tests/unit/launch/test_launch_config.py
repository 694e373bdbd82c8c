from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsefleet.errors import ConfigError
from sparsefleet.launch import LaunchConfig


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.touch()
    return str(path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"script": "missing.py"}, "script 'missing.py' does not exist"),
        ({"script": ""}, "script must be"),
        ({"num_servers": -1}, r"num_servers must be an int in 0\.\."),
        ({"num_servers": 0, "keep_going": True}, "keep_going needs servers"),
        ({"num_servers": 0, "show": "server.0"}, "worker.0 to worker.0, or all, got 'server.0'"),
        (
            {"num_servers": 0, "num_workers": 3, "nodes": ("a", "b"), "start_port": 9100},
            "num_workers must be a multiple of the 2 nodes in a job without servers, got 3",
        ),
        ({"max_restarts": -1}, "max_restarts must be an int in 0"),
        ({"num_workers": 0}, "num_workers"),
        ({"num_workers": "2"}, "num_workers"),
        ({"transport": "pigeon"}, "transport must be auto or tls or plain"),
        ({"start_port": 70000}, "start_port"),
        (
            {"start_port": 65535, "num_servers": 2},
            "start_port must leave 2 ports for servers below 65536, got 65535",
        ),
        ({"grace_s": -1.0}, "grace_s"),
        ({"show": "worker.1"}, "show must be a process of the job, worker.0 to worker.0 or"),
        ({"show": "worker"}, "show must be a process of the job"),
        ({"show": "boss.0"}, "got 'boss.0'"),
        ({"join_timeout_s": 0.0}, "join_timeout_s"),
        ({"endpoints": ("a",)}, "HOST:PORT"),
        ({"endpoints": ("a:1", "b:1")}, r"one entry per server \(1\), got 2"),
        ({"endpoints": ("a:1", "a:1"), "num_servers": 2}, "all different"),
        ({"endpoints": ("a:1",), "nodes": ("a",)}, "cannot be used together"),
        ({"node_rank": 1}, "0 unless nodes are given"),
        ({"nodes": ("a", "b"), "node_rank": 2, "start_port": 9100}, "node_rank"),
        ({"nodes": ("a", "b")}, "start_port is required with nodes"),
        ({"nodes": ("a", ""), "start_port": 9100}, "HOST:PORT"),
    ],
)
def test_wrong_field_is_named(fields: dict[str, Any], message: str, script: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LaunchConfig(**{"script": script, **fields})
