"""The RayJob manifest for KubeRay."""

from __future__ import annotations

import shlex

from sparsefleet.errors import ConfigError
from sparsefleet.launch.manifests.manifest_config import ManifestConfig, TaskShape
from sparsefleet.launch.manifests.pods import (
    STATE,
    Value,
    claim,
    container_base,
    labels,
    notes,
    pod_base,
    require_kubernetes_names,
    to_yaml,
    variables,
)

__all__ = ["rayjob_yaml"]

_SHARE = 0.6
_HEAD = TaskShape(count=1, cpus=2, memory=4 << 30)


def rayjob_yaml(config: ManifestConfig, ray_version: str) -> str:
    """Return a RayJob and its volume. The RayJob starts a Ray cluster with one group of nodes for
    servers and one for workers, and runs `sparsefleet launch --on ray` on it.
    """
    require_kubernetes_names(config)
    if config.durability == "replica" and config.servers.count == 1:
        raise ConfigError(
            "ManifestConfig.durability='replica' needs at least 2 servers in a RayJob, because "
            "the copy of a server's log is on the next server's node"
        )
    made: dict[str, Value] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": config.name, "labels": labels(config)},
        "spec": {
            "entrypoint": shlex.join(_entrypoint(config)),
            "submissionMode": "K8sJobMode",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "rayClusterSpec": {
                "rayVersion": ray_version,
                "headGroupSpec": {
                    # No part of the job runs on the head.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": _pod(config, "ray-head", _HEAD),
                },
                "workerGroupSpecs": [
                    _group(config, "servers", config.servers),
                    _group(config, "workers", config.workers),
                ],
            },
        },
    }
    head = notes(config, "KubeRay 1.1 or later, and an image with the extra `ray`")
    return head + "---\n".join(to_yaml(part) for part in (claim(config), made))


def _entrypoint(config: ManifestConfig) -> list[str]:
    words = ["sparsefleet", "launch", "--on", "ray"]
    words += ["--servers", str(config.servers.count), "--workers", str(config.workers.count)]
    words += ["--server-cpus", str(config.servers.cpus), "--worker-cpus", str(config.workers.cpus)]
    # A node offers Ray about 70% of its pod's memory; the rest is for its object store.
    words += ["--server-memory", f"{int(config.servers.memory * _SHARE) >> 20}MiB"]
    words += ["--durability", config.durability, "--transport", config.transport]
    words += ["--max-restarts", str(config.max_restarts), "--log-dir", f"{STATE}/logs"]
    if config.native_servers:
        words.append("--native-servers")
    if config.is_module:
        words.append("-m")
    return [*words, config.script, *config.arguments]


def _group(config: ManifestConfig, name: str, tasks: TaskShape) -> dict[str, Value]:
    return {
        "groupName": name,
        "replicas": tasks.count,
        "minReplicas": tasks.count,
        "maxReplicas": tasks.count,
        "rayStartParams": {"num-cpus": str(tasks.cpus)},
        "template": _pod(config, "ray-worker", tasks),
    }


def _pod(config: ManifestConfig, name: str, tasks: TaskShape) -> dict[str, Value]:
    base = container_base(config, tasks, folder={"subPath": config.name})
    return {
        "metadata": {"labels": labels(config)},
        "spec": {
            **pod_base(config),
            "containers": [{"name": name, **base, "env": variables(config)}],
        },
    }
