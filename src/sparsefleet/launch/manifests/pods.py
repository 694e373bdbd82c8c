"""The parts that all Kubernetes manifests share: pods, volumes, the notes at the top, and YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from sparsefleet.errors import ConfigError
from sparsefleet.launch.manifests.manifest_config import ManifestConfig, TaskShape, memory_bytes

__all__ = [
    "CHECKPOINTS",
    "STATE",
    "USER",
    "Value",
    "claim",
    "container_base",
    "field",
    "key_name",
    "labels",
    "notes",
    "pod_base",
    "port_of",
    "require_kubernetes_names",
    "server_probes",
    "to_yaml",
    "variables",
    "words",
]

Value = str | int | bool | Mapping[str, "Value"] | Sequence["Value"]

# Plain in YAML 1.1 and 1.2: not a number, a boolean, null, a date or a flow collection.
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./$()-]*")
_RESERVED = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def to_yaml(value: Value) -> str:
    """Return a value as a YAML document in block style.

    >>> print(to_yaml({"a": ["x", {"b": 1, "c": "on"}], "d": {}}), end="")
    a:
    - x
    - b: 1
      c: "on"
    d: {}
    """
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Value) -> list[str]:
    if isinstance(value, Mapping) and value:
        lines = []
        for key, entry in value.items():
            lines += _entry(f"{_scalar(key)}:", entry, indent="" if _is_list(entry) else "  ")
        return lines
    if _is_list(value) and value:
        assert isinstance(value, Sequence)
        lines = []
        for entry in value:
            first, *rest = _lines(entry)
            lines += [f"- {first}", *(f"  {line}" for line in rest)]
        return lines
    return [_scalar(value)]


def _entry(start: str, value: Value, indent: str) -> list[str]:
    if not isinstance(value, str) and isinstance(value, (Mapping, Sequence)) and value:
        return [start, *(indent + line for line in _lines(value))]
    return [f"{start} {_scalar(value)}"]


def _is_list(value: Value) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _scalar(value: Value) -> str:
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _RESERVED
        return value if is_plain else json.dumps(value)
    return json.dumps(value)  # numbers, booleans, and empty collections


STATE = "/state"
"""Where pods mount the servers' logs, in the job's own folder on the volume."""
CHECKPOINTS = "/checkpoints"

_KEY_DIR = "/var/run/sparsefleet"
USER = 1000
"""The user and group of all pods, and of the image built from the Dockerfile."""
_DEFAULT_PORT = 9100
_SUBDOMAIN = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"


def require_kubernetes_names(config: ManifestConfig) -> None:
    """Raise ConfigError for a name that Kubernetes would reject when the file is applied."""
    if not config.name[0].isalpha():
        raise ConfigError(
            f"ManifestConfig.name must start with a letter, because it becomes the name of a "
            f"Kubernetes service; got {config.name!r}"
        )
    if not re.fullmatch(r"[^\s\0]+", config.image):
        raise ConfigError(
            "ManifestConfig.image must be an image name without spaces, such as "
            f"registry/ads:1, got {config.image!r}"
        )
    for field_name in ("key_secret", "storage_class"):
        found = getattr(config, field_name)
        if found and not re.fullmatch(_SUBDOMAIN, found):
            raise ConfigError(
                f"ManifestConfig.{field_name} must be lower-case letters, digits, dashes and dots, "
                f"as Kubernetes requires, got {found!r}"
            )


def port_of(config: ManifestConfig) -> int:
    return config.port or _DEFAULT_PORT


def key_name(config: ManifestConfig) -> str:
    return config.key_secret or f"{config.name}-key"


def labels(config: ManifestConfig) -> dict[str, Value]:
    return {"app.kubernetes.io/name": "sparsefleet", "app.kubernetes.io/instance": config.name}


def notes(config: ManifestConfig, needs: str) -> str:
    """Return the usage instructions for the top of a manifest file, as a comment."""
    return f"""\
# {config.servers.count} servers and {config.workers.count} workers. Needs {needs}.
# Create the job key once; it is never written to a manifest:
#   openssl rand -hex 32 | kubectl create secret generic {key_name(config)} \\
#     --from-file=job.key=/dev/stdin
# Then: kubectl apply -f THIS_FILE
"""


def claim(config: ManifestConfig) -> dict[str, Value]:
    """Return the claim for the volume with server logs and checkpoints, which outlives all pods."""
    spec: dict[str, Value] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": _quantity(config.state_size)}},
    }
    if config.storage_class:
        spec["storageClassName"] = config.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": f"{config.name}-state", "labels": labels(config)},
        "spec": spec,
    }


def _quantity(size: str) -> str:
    """Return a size such as 20GiB in the notation of Kubernetes, 20Gi."""
    mebibytes = -(-memory_bytes(size) // 2**20)
    return f"{mebibytes}Mi" if mebibytes % 1024 else f"{mebibytes // 1024}Gi"


def field(name: str, path: str) -> dict[str, Value]:
    """Return an environment variable whose value Kubernetes fills in through the downward API."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def variables(config: ManifestConfig) -> list[Value]:
    """Return the environment variables that every process gets, whatever starts the process."""
    own = {
        "SPARSEFLEET_JOB_KEY_FILE": f"{_KEY_DIR}/job.key",
        "SPARSEFLEET_LOG_DIR": STATE,
        "SPARSEFLEET_DURABILITY": config.durability,
        "SPARSEFLEET_TRANSPORT": config.transport,
        "SPARSEFLEET_STATE_KEPT": "1",
        "SPARSEFLEET_FAILOVER_WAIT_S": "300",
        "PYTHONUNBUFFERED": "1",
        **dict(config.environment),
    }
    return [{"name": name, "value": _literal(text)} for name, text in own.items()]


def container_base(
    config: ManifestConfig, tasks: TaskShape, *, folder: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the image, resources, mounts and limits of a container.

    folder: the job's folder on its volume, as `subPath` or `subPathExpr`.
    """
    amounts: dict[str, Value] = {"cpu": str(tasks.cpus), "memory": f"{-(-tasks.memory // 2**20)}Mi"}
    return {
        "image": config.image,
        "resources": {"requests": amounts, "limits": {"memory": amounts["memory"]}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [
            {"name": "key", "mountPath": _KEY_DIR, "readOnly": True},
            {"name": "state", "mountPath": STATE, **folder},
            {"name": "state", "mountPath": CHECKPOINTS, "subPath": "checkpoints"},
        ],
    }


def pod_base(config: ManifestConfig) -> dict[str, Value]:
    """Return the fields common to all pods: volumes, an unprivileged user, the shutdown time."""
    return {
        "terminationGracePeriodSeconds": config.grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            # Readable by the group, because the file belongs to root and the process is not root.
            {"name": "key", "secret": {"secretName": key_name(config), "defaultMode": 0o440}},
            {"name": "state", "persistentVolumeClaim": {"claimName": f"{config.name}-state"}},
        ],
    }


def server_probes(config: ManifestConfig) -> dict[str, Value]:
    """Return probes that connect to the server's port, which opens once the log is recovered.

    The probes send nothing, so they need no key, and the server does not log them.
    """
    port: dict[str, Value] = {"tcpSocket": {"port": port_of(config)}}
    return {
        "ports": [{"name": "sparsefleet", "containerPort": port_of(config)}],
        "startupProbe": {**port, "periodSeconds": 2, "failureThreshold": 1800},
        "readinessProbe": {**port, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**port, "periodSeconds": 20, "timeoutSeconds": 10, "failureThreshold": 6},
    }


def words(command: Sequence[str]) -> list[Value]:
    """Return a command with Kubernetes variable references escaped.

    >>> words(["echo", "$(date)"])
    ['echo', '$$(date)']
    """
    return [_literal(word) for word in command]


def _literal(text: str) -> str:
    """Return the text escaped, so that Kubernetes does not expand any $(NAME) in it."""
    return text.replace("$(", "$$(")
