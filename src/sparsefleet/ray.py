"""sparsefleet on Ray (extra `ray`): `RayTrainer` and `Servers`; see docs/ray.md."""

try:
    import ray as _ray  # noqa: F401
    import ray.train as _ray_train  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"sparsefleet.ray needs Ray with Ray Train, which cannot be imported ({error}): "
        "pip install 'sparsefleet[ray]'"
    ) from error

from sparsefleet.launch.ray.servers import Servers
from sparsefleet.launch.ray.trainer import RayTrainer

__all__ = ["RayTrainer", "Servers"]
