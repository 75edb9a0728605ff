"""The class of all commands: common options, errors, and the sections of the help."""

from collections.abc import Callable, Sequence
from inspect import cleandoc
from typing import Any

import click
from click.core import ParameterSource

from celery_dynbeat.cli.base.cells import Column
from celery_dynbeat.cli.base.errors import reporting_errors
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.parameters import flag

DONE = (
    "0: success. 1: something was not found, the command was refused, or the "
    "database reported an error. 2: the command line is invalid."
)
#: The options that Invocation reads.
_SCOPE = ("owner", "all_owners", "actor", "reason", "yes", "after", "all_pages")
PREFIX = "celery -A proj dynbeat"


class DocumentedCommand(click.Command):
    """A command whose help has examples, exit statuses and the columns of its piped output.

    The docstring of its function ends with the examples and the exit statuses, as in the command
    ``status``. An example begins after ``celery -A proj dynbeat``. DONE applies to a docstring
    without exit statuses.
    """

    def __init__(self, name: str, *, columns: Sequence[Column] = (), **settings: Any) -> None:
        text, _, rest = cleandoc(settings["help"]).partition("\n\nFor example:\n")
        examples, _, statuses = rest.partition("\n\nExit status: ")
        super().__init__(name, **settings | {"help": text})
        self.examples = [f"{PREFIX} {example.strip()}" for example in examples.splitlines()]
        self.exit_statuses = " ".join(statuses.split()) or DONE
        self.columns = columns

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write examples, exit statuses and the columns of piped output after the options."""
        del ctx
        for title, lines in self.help_sections().items():
            with formatter.section(title):
                for line in lines:
                    formatter.write_text(line)

    def help_sections(self) -> dict[str, Sequence[str]]:
        """Return the titles and lines that follow the options in the help."""
        sections: dict[str, Sequence[str]] = {"Examples": self.examples}
        if self.columns:
            sections["Piped output"] = [", ".join(column.name for column in self.columns)]
        sections["Exit status"] = [self.exit_statuses]
        return sections


class DynbeatCommand(DocumentedCommand):
    """A command with ``--json``, whose callback receives an Invocation and its own options."""

    def __init__(self, name: str, *, is_list: bool = False, **settings: Any) -> None:
        super().__init__(name, **settings)
        form = "JSON lines: one object per row" if self.columns or is_list else "one JSON object"
        self.params.append(flag("--json", "as_json", help=f"Print {form}."))

    def invoke(self, ctx: click.Context) -> Any:
        """Call the callback with an Invocation, and report errors. Its instants are aware."""
        given = dict(ctx.params)
        as_json = given.pop("as_json")
        with reporting_errors(ctx, as_json=as_json):
            cli = Invocation(ctx, as_json, **_scope(ctx, given))
            assert self.callback is not None  # noqa: S101 - command() gives it
            with cli.acting():
                values = {name: cli.resolved(value) for name, value in given.items()}
                return ctx.invoke(self.callback, cli, **values)


def _scope(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take the options that Invocation reads out of ``given``."""
    scope: dict[str, Any] = {key: given.pop(key) for key in _SCOPE if key in given}
    is_given = context.get_parameter_source("owner") not in {None, ParameterSource.DEFAULT}
    scope["owner_given"] = is_given
    if scope.get("all_owners") and is_given:
        raise click.UsageError("--owner and --all-owners cannot be combined", context)
    if given.get("owner_prefix") is not None and is_given:
        raise click.UsageError("--owner and --owner-prefix cannot be combined", context)
    # The id of a batch is unique.
    wider = ("owner_prefix", "batch_id")
    if scope.get("all_owners") or any(given.get(key) is not None for key in wider):
        scope["owner"] = scope["owner"] if is_given else None
    return scope


def command(
    name: str, *params: click.Parameter, **settings: Any
) -> Callable[[Callable[..., Any]], DynbeatCommand]:
    """Return a decorator that makes a command of a function; ``settings`` of DynbeatCommand."""
    return click.command(name, cls=DynbeatCommand, params=[*params], **settings)
