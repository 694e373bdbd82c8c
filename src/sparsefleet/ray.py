"""sparsefleet on Ray (extra `ray`): `RayTrainer` and `Servers`; see docs/ray.md."""

try:
    import ray as _ray  # noqa: F401
    import ray.train as _ray_train  # noqa: F401
except ImportError as error:
    raise ImportError(
        "sparsefleet.ray requires the ray package with Ray Train; run "
        f"`pip install 'sparsefleet[ray]'`: {error}"
    ) from error

from sparsefleet.launch.ray.servers import Servers
from sparsefleet.launch.ray.trainer import RayTrainer

__all__ = ["RayTrainer", "Servers"]
