"""Run a job on Ray, with servers as Ray actors and workers managed by Ray Train."""

from sparsefleet._lazy import lazy_names, listing
from sparsefleet.launch.ray.servers import Servers

__all__ = ["RayTrainer", "Servers"]

__getattr__ = lazy_names(__name__, {"RayTrainer": "sparsefleet.launch.ray.trainer"})
__dir__ = listing(__all__)
