"""``celery -A proj dynbeat ...``: one module for each command or family of commands.

Celery imports this module for each Celery command, also for beat and worker. The module of a
command is therefore imported only when the command runs (click, "Lazily Loading Subcommands").
"""

from collections.abc import Sequence
from importlib import import_module
from typing import ClassVar

import click
from click_didyoumean import DYMGroup


class LazyGroup(DYMGroup):
    """A group that imports a command when it is used, and suggests names for an unknown command."""

    #: Name -> module and object, and the first sentence of the command's help.
    lazy_commands: ClassVar = {
        "add": ("add:add", "Create a schedule."),
        "list": (
            "list_schedules:list_schedules",
            "List schedules by name, or by owner and name with --all-owners.",
        ),
        "show": ("show:show", "Show a schedule, its next fire times and its last runs."),
        "update": ("update:update", "Change some fields of a schedule."),
        "rename": (
            "rename:rename",
            "Give a schedule another name.",
        ),
        "pause": ("pausing:pause", "Stop a schedule until it is resumed, or until an instant."),
        "resume": (
            "pausing:resume",
            "Resume a paused or quarantined schedule at its next fire time.",
        ),
        "skip": ("skipping:skip", "Skip one fire time of a schedule."),
        "unskip": ("skipping:unskip", "Restore a skipped fire time before it passes."),
        "hold": ("holds:hold", "Stop the schedules of one owner, or of all owners."),
        "release": ("holds:release", "End the hold of an owner, or the hold of all owners."),
        "holds": (
            "holds:holds",
            "List the holds in force with their reasons, and what they hold.",
        ),
        "quiet-hours": (
            "quiet_hours:quiet_hours",
            "Set, show or clear the quiet hours of an owner.",
        ),
        "usage": (
            "usage:usage",
            "Show the schedules and runs of an owner, and the limits on them.",
        ),
        "run": ("run:run", "Run a schedule once now, even if it is paused."),
        "rerun": ("rerun:rerun", "Rerun one ended run, or all failed runs with --since."),
        "backfill": (
            "backfill:backfill",
            "Run a schedule for its past fire times that have no run.",
        ),
        "cancel": ("cancel:cancel", "Cancel runs that have not started or that wait for a retry."),
        "delete": (
            "delete:delete",
            "Delete a schedule, and revoke its runs that have not started.",
        ),
        "runs": ("runs:runs", "List runs, newest fire time first."),
        "show-run": ("runs:show_run", "Show one run, with its errors and its traceback."),
        "next": (
            "next_runs:next_runs",
            "List the next fire times of a schedule, or forecast runs.",
        ),
        "calendars": (
            "calendars:calendars",
            "List, show, write and delete shared calendars.",
        ),
        "changes": ("changes:changes", "List who changed what and why, newest first."),
        "apply": ("apply:apply_file", "Make the stored schedules match FILE (YAML or JSON)."),
        "export": ("export:export", "Write the schedules as YAML, or as JSON with --json."),
        "import": (
            "import_schedules:import_schedules",
            "Import the schedules of another scheduler.",
        ),
        "explain": ("explain:explain_schedule", "Explain why a schedule ran or did not run."),
        "errors": (
            "errors_by_task:errors",
            "Count the failed and lost runs by task and error.",
        ),
        "alerts": ("alerts:alerts", "List the open alerts, oldest first."),
        "test-alert": (
            "alerts:test_alert",
            "Send a test message to each URL of dynbeat_alert_urls.",
        ),
        "prune": ("prune:prune_now", "Delete old history and old changes now."),
        "replan": (
            "replan:replan",
            "Plan schedules again: new tz database, or new dynbeat_quiet_hours.",
        ),
        "status": ("status:status", "Show the health of the installation."),
        "schema": ("schema:schema", "Create and check the tables."),
        "flower": ("flower:flower", "Start Flower with pages for schedules, runs and beats."),
    }

    def list_commands(self, ctx: click.Context) -> Sequence[str]:
        """Return the names of the commands in the order of the help."""
        del ctx
        return list(self.lazy_commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or None if no command has this name."""
        del ctx
        if cmd_name not in self.lazy_commands:
            return None
        module, _, name = self.lazy_commands[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(f"{__name__}.{module}"), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of the commands, without an import of their modules."""
        del ctx
        room = formatter.width - 6 - max(map(len, self.lazy_commands))
        rows = [
            (name, click.Command(name, help=text).get_short_help_str(room))
            for name, (_, text) in self.lazy_commands.items()
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup)
def dynbeat() -> None:
    """Schedules, runs and the health of a dynbeat installation."""
