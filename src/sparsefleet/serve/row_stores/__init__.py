"""Where the rows of a model that is served can be, besides its own files."""

from sparsefleet.serve.row_stores.open_rows import open_rows
from sparsefleet.serve.row_stores.redis_rows import RedisRows
from sparsefleet.serve.row_stores.redis_versions import PushedVersion, RedisVersions
from sparsefleet.serve.row_stores.row_push import push_rows
from sparsefleet.serve.row_stores.server_rows import ServerRows
from sparsefleet.serve.row_stores.updated_rows import UpdatedRows

__all__ = [
    "PushedVersion",
    "RedisRows",
    "RedisVersions",
    "ServerRows",
    "UpdatedRows",
    "open_rows",
    "push_rows",
]
