"""Row stores for served models, used in place of the model's own files."""

from sparsefleet.serving.row_stores.redis_rows import PushedVersion, RedisRows, RedisVersions
from sparsefleet.serving.row_stores.row_push import push_rows
from sparsefleet.serving.row_stores.server_rows import ServerRows
from sparsefleet.serving.row_stores.updated_rows import UpdatedRows, open_rows

__all__ = [
    "PushedVersion",
    "RedisRows",
    "RedisVersions",
    "ServerRows",
    "UpdatedRows",
    "open_rows",
    "push_rows",
]
