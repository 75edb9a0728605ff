"""The class of all commands: common options, errors, and the sections of the help."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from celery_dynbeat.cli.base.columns import Column
from celery_dynbeat.cli.base.errors import application_of, reporting_errors
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.output import Output

DONE = (
    "0: success. 1: something was not found, the command was refused, or the "
    "database reported an error. 2: the command line is invalid."
)
_COMMON = ("owner", "all_owners", "actor", "reason", "yes")
PREFIX = "celery -A proj dynbeat"


class DocumentedCommand(click.Command):
    """A command whose help has examples, exit statuses and the columns of its piped output.

    ``examples`` are command lines after ``celery -A proj dynbeat``.
    """

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        exit_statuses: str = DONE,
        columns: Sequence[Column] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = [f"{PREFIX} {example}" for example in examples]
        self.exit_statuses = exit_statuses
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

    def __init__(self, *args: Any, is_list: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        form = "JSON lines: one object per row" if self.columns or is_list else "one JSON object"
        help_text = f"Print {form}."
        self.params.append(click.Option(["--json", "as_json"], is_flag=True, help=help_text))

    def invoke(self, ctx: click.Context) -> Any:
        """Call the callback with an Invocation, and report errors."""
        given = dict(ctx.params)
        as_json = given.pop("as_json")
        output = Output(as_json=as_json, no_color=ctx.obj.no_color, application=application_of(ctx))
        with reporting_errors(ctx, as_json=as_json):
            invocation = Invocation(ctx, output, **_common(ctx, given))
            assert self.callback is not None  # noqa: S101 - command() gives it
            with invocation.acting():
                return ctx.invoke(self.callback, invocation, **given)


def _common(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    """Take the options that Invocation reads out of ``given``."""
    common: dict[str, Any] = {key: given.pop(key) for key in _COMMON if key in given}
    source = context.get_parameter_source("owner")
    common["owner_given"] = source not in {None, ParameterSource.DEFAULT}
    if common.get("all_owners"):
        if common["owner_given"]:
            raise click.UsageError("--owner and --all-owners cannot be combined", context)
        common["owner"] = None
    if given.get("owner_prefix") is not None:
        if common["owner_given"]:
            raise click.UsageError("--owner and --owner-prefix cannot be combined", context)
        common["owner"] = None
    return common


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], DynbeatCommand]:
    """Return a decorator that makes a command of a function; ``settings`` of DynbeatCommand."""
    return click.command(name, cls=DynbeatCommand, **settings)
