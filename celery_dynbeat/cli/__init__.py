"""``celery -A proj dynbeat ...``: the commands that people type. One file for each noun.

Celery imports this module for each of its own commands, beat and worker among them; what belongs
to one of ours is imported when somebody types it (click, "Lazily Loading Subcommands").
"""

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

import click


class _Commands(click.Group):
    """Commands by name, each an object in a module of its own."""

    where: ClassVar = {
        "status": "status:status",
        "prune": "prune:prune_now",
        "schema": "schema:schema",
    }

    def list_commands(self, ctx: click.Context) -> Sequence[str]:  # type: ignore[override]
        del ctx
        return list(self.where)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in self.where:
            return None
        module, _, name = self.where[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command


@click.group(cls=_Commands)
def dynbeat() -> None:
    """Database-backed schedules: their health, their history, their tables."""
