"""``celery -A proj dynbeat ...``: one module for each command or family of commands.

Celery imports this module for each Celery command, also for beat and worker. So the module of
a command is imported only when the command runs (click, "Lazily Loading Subcommands").
"""

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

import click
from click_didyoumean import DYMGroup


class LazyGroup(DYMGroup):
    """A group that imports a command when it is used, and suggests names for an unknown one."""

    #: Name -> module and object.
    lazy_commands: ClassVar = {
        "add": "add:add",
        "list": "list_schedules:list_schedules",
        "show": "show:show",
        "update": "update:update",
        "pause": "pausing:pause",
        "resume": "pausing:resume",
        "skip": "skipping:skip",
        "unskip": "skipping:unskip",
        "hold": "holds:hold",
        "release": "holds:release",
        "holds": "holds:holds",
        "run": "run:run",
        "rerun": "rerun:rerun",
        "cancel": "cancel:cancel",
        "delete": "delete:delete",
        "runs": "runs:runs",
        "next": "next_runs:next_runs",
        "changes": "changes:changes",
        "apply": "apply:apply_file",
        "export": "export:export",
        "import": "import_schedules:import_schedules",
        "explain": "explain:explain_schedule",
        "alerts": "alerts:alerts",
        "alert-targets": "alert_targets:alert_targets",
        "test-alert": "alerts:test_alert",
        "prune": "prune:prune_now",
        "status": "status:status",
        "schema": "schema:schema",
        "flower": "flower:flower",
    }

    def list_commands(self, ctx: click.Context) -> Sequence[str]:
        """Return the names of the commands in the order of the help."""
        del ctx
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of this name."""
        del ctx
        if cmd_name not in self.lazy_commands:
            return None
        module, _, name = self.lazy_commands[cmd_name].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command


@click.group(cls=LazyGroup)
def dynbeat() -> None:
    """Schedules, runs and the health of a dynbeat installation."""
