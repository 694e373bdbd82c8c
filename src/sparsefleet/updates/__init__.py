"""Changes of a model that is being trained, on their way to where it is served."""

from sparsefleet.updates.model_moment import DenseValues, ModelMoment
from sparsefleet.updates.redis_server import RedisServer, is_redis
from sparsefleet.updates.update import TableChanges, Update
from sparsefleet.updates.update_log import UpdateLog, open_log
from sparsefleet.updates.update_name import UpdateName
from sparsefleet.updates.update_reader import UpdateReader

__all__ = [
    "DenseValues",
    "ModelMoment",
    "RedisServer",
    "TableChanges",
    "Update",
    "UpdateLog",
    "UpdateName",
    "UpdateReader",
    "is_redis",
    "open_log",
]
