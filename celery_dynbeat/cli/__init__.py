"""``celery -A proj dynbeat ...``: one module for each family of commands.

Celery imports this module for each Celery command, also for beat and worker. The modules of the
commands are therefore imported only for a command of dynbeat (click, "Lazily Loading Subcommands").
"""

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

import click
from click_didyoumean import DYMGroup

#: What people type for a command, from the names of calls.
MEANT = {
    "alerts": "status --alerts",
    "backfill": "run --since",
    "create": "add",
    "explain": "show --why",
    "forecast": "status --forecast",
    "history": "runs",
    "next": "show",
    "preview": "add --dry-run",
    "release": "hold --release",
    "unskip": "skip --undo",
    "usage": "owner",
}


class LazyGroup(DYMGroup):
    """A group that imports a command when it is used, and suggests names for an unknown command."""

    #: Module -> its commands, in the order of the help.
    families: ClassVar = {
        "edit": ("add", "update", "pause", "resume", "skip", "delete"),
        "show": ("show", "list", "changes"),
        "runs": ("run", "rerun", "cancel", "runs"),
        "owners": ("hold", "owner"),
        "calendars": ("calendars",),
        "apply": ("apply",),
        "export": ("export",),
        "import_schedules": ("import",),
        "status": ("status",),
        "maintenance": ("schema", "prune", "replan"),
        "flower": ("flower",),
    }

    def list_commands(self, ctx: click.Context) -> Sequence[str]:
        """Return the names of the commands in the order of the help."""
        del ctx
        return [name for names in self.families.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if no command has this name."""
        del ctx
        for family, names in self.families.items():
            if cmd_name in names:
                found = vars(import_module(f"{__name__}.{family}")).values()
                commands = (each for each in found if isinstance(each, click.Command))
                return next(each for each in commands if each.name == cmd_name)
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of the arguments. Raises UsageError for an unknown one."""
        if meant := MEANT.get(args[0]):
            ctx.fail(f"No such command {args[0]!r}: use `dynbeat {meant}`.")
        resolved: tuple[str | None, click.Command | None, list[str]] = super().resolve_command(
            ctx, args
        )
        return resolved


@click.group(cls=LazyGroup)
def dynbeat() -> None:
    """Schedules, runs and the health of a dynbeat installation."""
