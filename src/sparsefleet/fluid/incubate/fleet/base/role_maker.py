"""Who says what this process is."""

from sparsefleet.fleet.role_makers import (
    GeneralRoleMaker,
    PaddleCloudRoleMaker,
    Role,
    RoleMakerBase,
    UserDefinedCollectiveRoleMaker,
    UserDefinedRoleMaker,
)
from sparsefleet.fluid.unknown_names import unknown_names

__getattr__ = unknown_names("fluid.incubate.fleet.base.role_maker")

__all__ = [
    "GeneralRoleMaker",
    "PaddleCloudRoleMaker",
    "Role",
    "RoleMakerBase",
    "UserDefinedCollectiveRoleMaker",
    "UserDefinedRoleMaker",
]
