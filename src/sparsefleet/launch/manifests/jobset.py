"""Manifests for a JobSet, and for Kubeflow Trainer, which runs one."""

from __future__ import annotations

from sparsefleet.launch.manifests.manifest_config import ManifestConfig, TaskShape
from sparsefleet.launch.manifests.pods import (
    Value,
    claim,
    container_base,
    field,
    labels,
    notes,
    pod_base,
    port_of,
    require_kubernetes_names,
    server_probes,
    to_yaml,
    variables,
    words,
)

__all__ = ["jobset_yaml", "trainjob_yaml"]

_JOBSET = "jobset.sigs.k8s.io"
_TRAINER = "trainer.kubeflow.org/v1alpha1"

_KILLED_CODES = (75, 134, 135, 136, 137, 139, 143)
"""Exit codes of a worker that handed over (75) or was killed by a signal (128 + its number)."""


def jobset_yaml(config: ManifestConfig) -> str:
    """Return a JobSet with one replicated job for servers and one for workers, and its volume."""
    require_kubernetes_names(config)
    made: dict[str, Value] = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": config.name, "labels": labels(config)},
        "spec": _jobset_spec(config, "workers"),
    }
    head = notes(config, "JobSet 0.8 or later (Kubernetes 1.29 or later)")
    return head + "---\n".join(to_yaml(part) for part in (claim(config), made))


def trainjob_yaml(config: ManifestConfig) -> str:
    """Return a TrainJob for Kubeflow Trainer v2, the runtime it refers to, and its volume."""
    require_kubernetes_names(config)
    runtime: dict[str, Value] = {
        "apiVersion": _TRAINER,
        "kind": "TrainingRuntime",
        "metadata": {"name": f"{config.name}-runtime", "labels": labels(config)},
        "spec": {
            "mlPolicy": {"numNodes": config.workers.count},
            "template": {"spec": _jobset_spec(config, "node")},
        },
    }
    job: dict[str, Value] = {
        "apiVersion": _TRAINER,
        "kind": "TrainJob",
        "metadata": {"name": config.name, "labels": labels(config)},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "TrainingRuntime",
                "name": f"{config.name}-runtime",
            },
            "trainer": {
                "image": config.image,
                "command": words(config.script_command),
                "numNodes": config.workers.count,
            },
        },
    }
    head = notes(config, "Kubeflow Trainer 2")
    head += "# Keep numNodes and SPARSEFLEET_WORKERS equal if you change the number of workers.\n"
    return head + "---\n".join(to_yaml(part) for part in (claim(config), runtime, job))


def _jobset_spec(config: ManifestConfig, workers_job: str) -> dict[str, Value]:
    config.require_durability("process", "disk")
    return {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        # Servers never exit on their own; the job is done when the workers are.
        "successPolicy": {"operator": "All", "targetReplicatedJobs": [workers_job]},
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [
            {"name": "servers", "replicas": 1, "template": _servers(config)},
            {
                "name": workers_job,
                "replicas": 1,
                "dependsOn": [{"name": "servers", "status": "Ready"}],
                "template": _workers(config, workers_job),
            },
        ],
    }


def _servers(config: ManifestConfig) -> dict[str, Value]:
    """Return the servers' job; a failed server restarts in its pod and recovers from its log."""
    container = {
        "name": "server",
        "command": words(config.server_command),
        **_container(config, config.servers),
        **server_probes(config),
    }
    pod: dict[str, Value] = {
        "restartPolicy": "OnFailure",
        **pod_base(config),
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {**labels(config), "sparsefleet/role": "server"}},
            }
        ],
        "containers": [container],
    }
    return {
        "spec": {
            **_indexed(config.servers),
            "backoffLimit": config.max_restarts * config.servers.count,
            "template": _template(config, "server", pod),
        }
    }


def _workers(config: ManifestConfig, workers_job: str) -> dict[str, Value]:
    """Return the workers' job; a killed worker gets a new pod, and an error stops the job."""
    name = "worker" if workers_job == "workers" else "node"
    container = {
        "name": name,
        "command": words(config.script_command),
        **_container(config, config.workers),
    }
    pod: dict[str, Value] = {
        "restartPolicy": "Never",
        **pod_base(config),
        "containers": [container],
    }
    is_trainer = workers_job == "node"
    job: dict[str, Value] = {
        "spec": {
            **_indexed(config.workers),
            "backoffLimitPerIndex": config.max_restarts,
            "maxFailedIndexes": 0,
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {
                        "action": "FailJob",
                        "onExitCodes": {
                            "containerName": name,
                            "operator": "NotIn",
                            "values": list(_KILLED_CODES),
                        },
                    },
                ]
            },
            "template": _template(config, "worker", pod),
        }
    }
    ancestor: dict[str, Value] = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    return {"metadata": {"labels": ancestor}, **job} if is_trainer else job


def _indexed(tasks: TaskShape) -> dict[str, Value]:
    return {"completionMode": "Indexed", "completions": tasks.count, "parallelism": tasks.count}


def _template(config: ManifestConfig, role: str, pod: dict[str, Value]) -> dict[str, Value]:
    return {"metadata": {"labels": {**labels(config), "sparsefleet/role": role}}, "spec": pod}


def _container(config: ManifestConfig, tasks: TaskShape) -> dict[str, Value]:
    base = container_base(config, tasks, folder={"subPathExpr": "$(JOBSET_UID)"})
    shape = {
        "SPARSEFLEET_NUM_SERVERS": config.servers.count,
        "SPARSEFLEET_WORKERS": config.workers.count,
        "SPARSEFLEET_PORT": port_of(config),
    }
    return {
        **base,
        "env": [
            # JOB_COMPLETION_INDEX is already set; these variables say which role it applies to.
            field("JOBSET_NAME", f"metadata.labels['{_JOBSET}/jobset-name']"),
            field("JOBSET_UID", f"metadata.labels['{_JOBSET}/jobset-uid']"),
            field("REPLICATED_JOB_NAME", f"metadata.labels['{_JOBSET}/replicatedjob-name']"),
            *({"name": name, "value": str(number)} for name, number in shape.items()),
            *variables(config),
        ],
    }
