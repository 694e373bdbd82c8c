"""Write jobs as files for schedulers: a batch script for Slurm, YAML for Kubernetes."""

from sparsefleet.launch.manifests.jobset import jobset_yaml, trainjob_yaml
from sparsefleet.launch.manifests.manifest_config import (
    ManifestConfig,
    TaskShape,
    default_name,
    memory_bytes,
)
from sparsefleet.launch.manifests.rayjob import rayjob_yaml
from sparsefleet.launch.manifests.slurm import slurm_script

__all__ = [
    "ManifestConfig",
    "TaskShape",
    "default_name",
    "jobset_yaml",
    "memory_bytes",
    "rayjob_yaml",
    "slurm_script",
    "trainjob_yaml",
]
