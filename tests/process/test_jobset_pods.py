"""The processes of a JobSet manifest, with the environment that its pods get, on loopback.

There is no Kubernetes here: the test starts each container's command itself, with the labels and
the index filled in, names of pods in /etc/hosts of a mount namespace, and the restart rules of the
manifest.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.kubernetes_schemas import Document, checked_documents
from tests.support.launch_process import wait_until
from tests.support.ports import free_ports

from sparsefleet.launch.manifests import ManifestConfig, TaskShape, jobset_yaml

SERVERS, WORKERS = 2, 2
RECORDS = 200 * 32 * WORKERS


def can_make_namespaces() -> bool:
    done = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    return sys.platform == "linux" and done.returncode == 0


pytestmark = [
    pytest.mark.job,
    pytest.mark.skipif(not can_make_namespaces(), reason="mount namespaces need root"),
]


class Pod:
    """A pod of the manifest, started by the constructor and again after it is killed."""

    def __init__(self, place: Path, job: Document, name: str, index: int) -> None:
        pod = job["template"]["spec"]["template"]["spec"]
        (self._container,) = pod["containers"]
        self._rules = job["template"]["spec"].get("podFailurePolicy", {}).get("rules", [])
        self._place = place
        self.name = f"ads-{name}-0-{index}"
        labels = {"jobset-name": "ads", "jobset-uid": "6f", "replicatedjob-name": name}
        own = {"JOB_COMPLETION_INDEX": str(index), "HOSTNAME": self.name}
        for entry in self._container["env"]:
            source = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            label = source.partition("jobset.sigs.k8s.io/")[2].removesuffix("']")
            own[entry["name"]] = labels[label] if source else entry["value"]
        # Volumes are directories here.
        own["SPARSEFLEET_JOB_KEY_FILE"] = str(place / "job.key")
        own["SPARSEFLEET_LOG_DIR"] = str(place / "state")
        self._environ = {**os.environ, **own}
        self.starts = 0
        self.start()

    def start(self) -> None:
        self.starts += 1
        command = shlex.join(self._container["command"])
        hosts = shlex.quote(str(self._place / "hosts"))
        script = f"mount --bind {hosts} /etc/hosts; exec {command}"
        with open(self._place / f"{self.name}.log", "ab") as log:
            self.process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", script],
                env=self._environ,
                cwd=self._place,
                stdout=log,
                stderr=log,
            )

    def restart_if_killed(self) -> None:
        """Do what Kubernetes does by the rules of the manifest."""
        code = self.process.poll()
        if code is None or code == 0:
            return
        code = 128 - code if code < 0 else code
        for rule in self._rules:
            if rule["action"] == "FailJob" and code not in rule["onExitCodes"]["values"]:
                raise AssertionError(f"{self.name} failed with {code}:\n{self.log()}")
        self.start()

    def log(self) -> str:
        return (self._place / f"{self.name}.log").read_text()


Start = Callable[..., dict[str, Pod]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Pod] = []

    def begin(**settings: Any) -> dict[str, Pod]:
        config = ManifestConfig(
            name="ads",
            python=sys.executable,
            image="ads:1",
            servers=TaskShape(count=SERVERS),
            workers=TaskShape(count=WORKERS),
            port=free_ports(2)[0],
            **settings,
        )
        jobs = checked_documents(jobset_yaml(config))["JobSet"]["spec"]["replicatedJobs"]
        made.extend(Pod(tmp_path, job, job["name"], index) for job in jobs for index in range(2))
        return {pod.name: pod for pod in made}

    (tmp_path / "out").mkdir()
    (tmp_path / "job.key").write_text(secrets.token_hex())
    (tmp_path / "job.key").chmod(0o600)
    names = [f"ads-{job}-0-{index}" for job in ("servers", "workers") for index in range(2)]
    lines = [f"127.0.0.{2 + at} {name} {name}.ads" for at, name in enumerate(names)]
    (tmp_path / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
    yield begin
    for pod in made:
        pod.process.kill()
        pod.process.wait()


def test_killed_pods_come_back_and_every_record_is_trained_once(
    start: Start, tmp_path: Path
) -> None:
    ledger = ("--out=out", "--batches=200", "--pace-ms=20", "--mode=async")
    pods = start(script="sparsefleet.cli.ledger", is_module=True, arguments=ledger)

    def step() -> None:
        for pod in pods.values():
            pod.restart_if_killed()

    def all_begun() -> bool:
        step()
        return all((tmp_path / "out" / f"begun-{index}").exists() for index in range(WORKERS))

    def is_done() -> bool:
        step()
        return all(pods[f"ads-workers-0-{index}"].process.poll() == 0 for index in range(WORKERS))

    wait_until(all_begun, "training")
    for victim in ("ads-workers-0-1", "ads-servers-0-0"):
        os.kill(pods[victim].process.pid, signal.SIGKILL)
    wait_until(is_done, "done\n" + "\n".join(pod.log()[-2000:] for pod in pods.values()))
    found = json.loads((tmp_path / "out" / "ledger.json").read_text())
    assert (found["records"], found["missing"], found["repeated"]) == (RECORDS, 0, 0)
    starts = {name: pod.starts for name, pod in pods.items()}
    assert starts == {
        "ads-servers-0-0": 2,
        "ads-servers-0-1": 1,
        "ads-workers-0-0": 1,
        "ads-workers-0-1": 2,
    }
    for index in range(SERVERS):
        server = pods[f"ads-servers-0-{index}"]
        assert f"listening on ads-servers-0-{index}:" in server.log()
        server.process.terminate()
        assert server.process.wait(60) == 0


LOOPS = {
    "fleet": """\
import torch
from sparsefleet import optim
from sparsefleet.nn import SparseEmbedding
model = SparseEmbedding("ads", 4)
fleet.distribute(model, optim.SGD(lr=0.1), "async")
fleet.init_worker()
ids = torch.arange(4)
with fleet.step(ids) as step:
    step.backward(model(ids).sum())
wait()
""",
    "store": """\
import numpy as np
from sparsefleet import RemoteStore, optim
from sparsefleet.store import TableSpec
with RemoteStore(fleet.server_endpoints(), name=f"worker-{fleet.worker_index()}") as store:
    store.define(TableSpec(name="ads", dim=1, optimizer=optim.SGD(lr=0.1)))
    store.push("ads", np.arange(4), np.ones((4, 1), np.float32))
    wait()
""",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_pod_with_a_custom_loop_is_not_continued_on_kept_state(
    start: Start, tmp_path: Path, loop: str
) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib, time\n"
        "from sparsefleet import fleet\n"
        "def wait():\n"
        "    pathlib.Path('out', f'begun-{fleet.worker_index()}').touch()\n"
        "    while True:\n"
        "        time.sleep(60)\n"
        "fleet.init()\n" + LOOPS[loop]
    )
    pods = start(script="train.py", native_servers=True)

    def all_begun() -> bool:
        for pod in pods.values():
            pod.restart_if_killed()
        return all((tmp_path / "out" / f"begun-{index}").exists() for index in range(WORKERS))

    wait_until(all_begun, "training")
    victim = pods["ads-workers-0-1"]
    os.kill(victim.process.pid, signal.SIGKILL)
    victim.process.wait()
    victim.restart_if_killed()
    assert victim.process.wait(60) == 1, victim.log()
    assert "worker-1 cannot be continued" in victim.log()
    with pytest.raises(AssertionError, match="ads-workers-0-1 failed with 1"):
        victim.restart_if_killed()
    assert pods["ads-workers-0-0"].process.poll() is None
