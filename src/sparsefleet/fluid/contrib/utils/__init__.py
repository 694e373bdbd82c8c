"""Tools that Fluid had on trial."""

from sparsefleet.fluid.contrib.utils import hdfs_utils
from sparsefleet.fluid.contrib.utils.hdfs_utils import HDFSClient, multi_download, multi_upload
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.contrib.utils")

__all__ = ["HDFSClient", "hdfs_utils", "multi_download", "multi_upload"]
