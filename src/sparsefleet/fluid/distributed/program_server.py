"""The role of a server's program."""

from __future__ import annotations

import os

from sparsefleet.fleet.role_info import RoleInfo
from sparsefleet.fluid.distributed.program_role import ProgramRole
from sparsefleet.fluid.distributed.saved_values import FolderLoad
from sparsefleet.fluid.distributed.update_rules import ModelSource
from sparsefleet.fluid.framework import Program
from sparsefleet.fluid.framework.scope import Scope
from sparsefleet.server import ServerConfig, run_server
from sparsefleet.server.run_server import durable_settings

__all__ = ["ProgramServer"]


class ProgramServer(ProgramRole):
    """A server in a job. Its tables and update rules are defined by the workers."""

    def __init__(self, role: RoleInfo, source: ModelSource) -> None:
        self.role = role
        self._source = source
        self._folder: FolderLoad | None = None

    def __str__(self) -> str:
        return f"the program of server {self.role.index} ({self.role.current_endpoint})"

    def main_program(self) -> Program:
        """Return the program that serves until the job ends."""
        made = Program()
        made.global_block().append_op("listen_and_serve")
        made._distributed = self
        return made

    def startup_program(self) -> Program:
        """Return the startup program, to be run first. Initial values may be loaded afterwards."""
        made = Program()
        made.global_block().append_op("prepare_server")
        made._distributed = self
        return made

    def get_ready(self, scope: Scope) -> None:
        del scope  # workers and the server's tables hold the values

    def serve(self) -> None:
        load = self._folder
        config = ServerConfig(
            endpoint=self.role.current_endpoint or self.role.server_endpoints[self.role.index],
            index=self.role.index,
            num_servers=self.role.server_num,
            transport=os.environ.get("SPARSEFLEET_TRANSPORT", "auto"),  # type: ignore[arg-type]
            has_successor=load is None,
            notes={} if load is None else load.first_note(),
            **durable_settings(self.role.index),
        )
        if load is None:
            run_server(config)
        else:
            with load:
                run_server(config)

    def load(self, folder: str | os.PathLike[str], filename: str | None) -> None:
        """Make the first server load the folder for all servers once it is running."""
        if self.role.index == 0:
            self._folder = FolderLoad(self._source, self.role, os.path.abspath(folder), filename)
