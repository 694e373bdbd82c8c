"""Deliver changes to a model in training to the services that serve the model."""

from sparsefleet.serving.updates.redis_server import RedisServer, is_redis
from sparsefleet.serving.updates.update import TableChanges, Update, UpdateName
from sparsefleet.serving.updates.update_log import UpdateLog, open_log
from sparsefleet.serving.updates.update_reader import DenseValues, ModelSnapshot, UpdateReader

__all__ = [
    "DenseValues",
    "ModelSnapshot",
    "RedisServer",
    "TableChanges",
    "Update",
    "UpdateLog",
    "UpdateName",
    "UpdateReader",
    "is_redis",
    "open_log",
]
