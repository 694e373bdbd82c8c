"""A job on Ray: servers as actors, workers of Ray Train."""

from sparsefleet._lazy import lazy_names, listing
from sparsefleet.launch.ray.servers import Servers

__all__ = ["RayTrainer", "Servers"]

__getattr__ = lazy_names(__name__, {"RayTrainer": "sparsefleet.launch.ray.trainer"})
__dir__ = listing(__all__)
