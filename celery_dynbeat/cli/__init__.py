"""``celery -A proj dynbeat ...``: one module for each command.

Celery imports this module for each Celery command, also for beat and worker. So the module of
a command is imported only when the command runs (click, "Lazily Loading Subcommands").
"""

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

import click


class _LazyGroup(click.Group):
    """A group that imports a command when it is used."""

    #: Name -> module and object.
    lazy_commands: ClassVar = {
        "status": "status:status",
        "prune": "prune:prune_now",
        "schema": "schema:schema",
    }

    def list_commands(self, ctx: click.Context) -> Sequence[str]:  # type: ignore[override]
        del ctx
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.lazy_commands:
            return None
        module, _, name = self.lazy_commands[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command


@click.group(cls=_LazyGroup)
def dynbeat() -> None:
    """Database-backed schedules: health, history, tables."""
