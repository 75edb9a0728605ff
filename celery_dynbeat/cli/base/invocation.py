"""One command line: the application, the scope of its options, its output; the class of commands.

The output has one of three forms:

- ``--json``: one object, or one object per line for a list (JSON lines).
- On a terminal: tables of rich that fit its width.
- Otherwise, plain lines for programs: values separated by TAB, without titles, colours or cuts.

rich is imported only for a terminal.
"""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, partial
from inspect import cleandoc
from itertools import islice
from typing import Any, NoReturn, Protocol, TypeVar
from zoneinfo import ZoneInfo

import click
from click.core import ParameterSource
from sqlalchemy.orm import Session

from celery_dynbeat.api import Dynbeat, OwnerSchedules, Schedules, dynbeat_of
from celery_dynbeat.api.audit import acting
from celery_dynbeat.api.field_types import TypedInstant
from celery_dynbeat.api.results import FireTime, Page, ScheduleInfo
from celery_dynbeat.cli.base.cells import Column, both_times, encodable, plain, readable
from celery_dynbeat.cli.base.errors import application_of, fail, reporting_errors
from celery_dynbeat.cli.base.parameters import flag
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import MAX_PAGE_SIZE, described_owner, escape, with_application
from celery_dynbeat.triggers.zones import load_zone

T = TypeVar("T")

#: Returns a page behind the cursor ``after``; None means the first page.
Fetch = Callable[..., Page[Any]]


@dataclass
class Invocation:
    """One command line. It connects at its first use of the database.

    ``owner=None`` means all owners.
    """

    context: click.Context
    as_json: bool = False
    owner: str | None = ""
    all_owners: bool = False
    owner_given: bool = False
    actor: str | None = None
    reason: str = ""
    yes: bool = False
    after: str | None = None
    all_pages: bool = False

    @cached_property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the application. Raises ConfigurationError if it has none."""
        return dynbeat_of(self.context.obj.app)

    @property
    def schedules(self) -> Schedules:
        """The calls across owners."""
        return self.dynbeat.schedules

    @property
    def mine(self) -> OwnerSchedules:
        """The calls of the owner that ``--owner`` names."""
        return self.schedules.for_owner(self.owner or "")

    @property
    def calls(self) -> OwnerSchedules | Schedules:
        """The calls of the owner, or those across owners with ``--all-owners``."""
        return self.schedules if self.owner is None else self.mine

    @property
    def run_calls(self) -> OwnerSchedules | Schedules:
        """The calls for a run id, which is unique: across owners without ``--owner``."""
        return self.calls if self.owner_given else self.schedules

    @property
    def now(self) -> datetime:
        """The time of the database."""
        return self.dynbeat.context.clock.now()

    @cached_property
    def zone(self) -> ZoneInfo:
        """The time zone of the owner; UTC for all owners."""
        if self.owner is None:
            return ZoneInfo("UTC")
        return ZoneInfo(self.mine.timezone())

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Record the actor and the reason of each edit in the block, if the command has them."""
        if self.actor is None:
            yield
            return
        with acting(actor=self.actor, reason=self.reason):
            yield

    def resolved(self, value: Any) -> Any:
        """Return the value of an option. A time without an offset is in the owner's zone."""
        if isinstance(value, TypedInstant):
            return value.resolve(now=lambda: self.now, zone=self.zone)
        return value

    def check_zone(self, name: str | None) -> None:
        """Raise UsageError if a time zone is unknown."""
        try:
            if name is not None:
                load_zone(name)
        except InvalidTriggerError as error:
            raise click.UsageError(str(error)) from None

    def time(self, instant: datetime) -> str:
        """Return an instant in the owner's zone and in UTC, for a sentence."""
        return both_times(instant, self.zone, now=self.now)

    def label(self, name: str) -> str:
        """Return the name of a schedule for a sentence."""
        return f"schedule {name!r} of owner {self.owner!r}" if self.owner else f"schedule {name!r}"

    @property
    def whose(self) -> str:
        """The owner, in words."""
        return "all owners" if self.owner is None else described_owner(self.owner)

    def when(self, info: ScheduleInfo) -> str:
        """Return the end of a sentence: when the schedule runs next."""
        if info.next_run_at is None:
            return ""
        return f"; next run {self.time(info.next_run_at)}"

    @property
    def can_ask(self) -> bool:
        """Whether an operator can answer a question."""
        return sys.stdin.isatty()

    def confirm(self, question: str) -> None:
        """Return if ``--yes`` was given or the operator agrees; exit otherwise.

        If there is no terminal, that is a usage error, because the caller cannot answer.
        """
        if self.yes:
            return
        if not self.can_ask:
            raise click.UsageError("this needs --yes: without a terminal the command cannot ask")
        if not click.confirm(f"{question} Continue?", err=True):
            self.refuse("nothing was changed")

    def agrees(self, question: str, *, nothing: str | None, result: Mapping[str, Any]) -> bool:
        """Ask, and return True if the operator agrees.

        ``nothing`` says that there is nothing to ask about. On a terminal, it is printed with
        ``result``.
        """
        if nothing is not None and self.can_ask:
            self.done(nothing, result)
            return False
        self.confirm(question)
        return True

    def refuse(self, text: str) -> NoReturn:
        """Print why nothing was done, and exit with status 1."""
        fail(self.context, text, as_json=self.as_json)

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads the output."""
        return not self.as_json and sys.stdout.isatty()

    @property
    def no_color(self) -> bool:
        """Whether the output must have no colours."""
        return bool(self.context.obj.no_color)

    def named(self, text: str) -> str:
        """Return the text with this application in the commands that it names."""
        return with_application(text, application_of(self.context))

    def line(self, text: str) -> None:
        """Print one line."""
        click.echo(encodable(escape(self.named(text))))

    def note(self, text: str) -> None:
        """Print a hint for a person to stderr. stdout stays readable for programs."""
        click.echo(encodable(escape(self.named(text))), err=True)

    def done(self, text: str, result: Mapping[str, Any]) -> None:
        """Print the result of an edit: a sentence, or the object with ``--json``."""
        self.line(json.dumps(result) if self.as_json else text)

    def cells(self, *values: Any) -> None:
        """Print values for a program, separated by TAB."""
        click.echo(encodable(self.named("\t".join(map(plain, values)))))

    def record(self, values: Mapping[str, Any], *, as_dict: Mapping[str, Any]) -> None:
        """Print one line for each value, after its name; ``as_dict`` with ``--json``.

        A list of fire times has one line for each of them, with its note.
        """
        if self.as_json:
            self.line(json.dumps(as_dict))
        elif self.on_terminal:
            from celery_dynbeat.cli.base import tables  # noqa: PLC0415

            shown = [(name, self._text(value)) for name, value in _flat(values)]
            tables.show_record(shown, no_color=self.no_color)
        else:
            for name, value in _flat(values):
                if isinstance(value, FireTime):
                    self.cells(name, value.fire_at, value.local.isoformat(), value.note)
                else:
                    self.cells(name, value)

    def _text(self, value: Any) -> str:
        """Return a value of a record for a person: a fire time on the clock of its schedule."""
        if isinstance(value, FireTime):
            time = both_times(value.fire_at, ZoneInfo(str(value.local.tzinfo)), now=self.now)
            return "; ".join(filter(None, (time, escape(value.note or ""))))
        return self.time(value) if isinstance(value, datetime) else readable(value)

    def show(
        self,
        columns: Sequence[Column],
        items: Iterable[Any],
        *,
        hidden: Collection[str] | None = None,
    ) -> None:
        """Print one row for each item. A table does not show the ``hidden`` columns.

        By default, a table shows the owner only if there are several owners.
        """
        if self.as_json:
            _echo(escape(json.dumps(item.to_dict())) for item in items)
        elif self.on_terminal:
            from celery_dynbeat.cli.base import tables  # noqa: PLC0415

            if hidden is None:
                hidden = () if self.owner is None else ("owner",)
            shown, rows = [each for each in columns if each.name not in hidden], list(items)
            if rows:
                tables.show(shown, rows, zone=self.zone, no_color=self.no_color)
            else:
                self.note("none")
        else:
            _echo("\t".join(plain(each.value(item)) for each in columns) for item in items)

    def show_pages(
        self, columns: Sequence[Column], fetch: Fetch, *, name: str | None = None
    ) -> None:
        """Print a page, or all pages, of everything or of schedule ``name``.

        Notes on stderr name the next page, and the option for other owners if there is nothing.
        """
        count, cursor = 0, self.after
        for page in islice(pages(fetch, after=self.after), None if self.all_pages else 1):
            count, cursor = count + len(page.items), page.cursor
            # A page of a filtered list can be empty, although there are more.
            if page.items or not (count or cursor):
                self.show(columns, page.items)
        if cursor is not None:
            self.note(f"there are more: add --all, or --after {cursor}")
        elif not count and name is None:
            self.note_scope()

    def note_scope(self) -> None:
        """Say on a terminal that an empty list is only for the application itself."""
        if self.owner == "" and self.on_terminal:
            self.note("This list is for the application itself: --all-owners lists all owners.")


def tried(dynbeat: Dynbeat, call: Callable[[Session], T]) -> T:
    """Return the result of edits in a session that is rolled back."""
    with Session(dynbeat.context.database.engine) as session:
        return call(session)


def pages(fetch: Fetch, *, after: str | None = None) -> Iterator[Page[Any]]:
    """Yield the page behind the cursor ``after``, and the pages that follow it."""
    page = fetch(after=after)
    yield page
    while page.cursor is not None:
        page = fetch(after=page.cursor)
        yield page


def all_of(fetch: Fetch) -> Iterator[Any]:
    """Yield the items of all pages."""
    for page in pages(partial(fetch, limit=MAX_PAGE_SIZE)):
        yield from page


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, list) and value and isinstance(value[0], FireTime):
            yield from ((name, each) for each in value)
        else:
            yield name, value


def _echo(lines: Iterable[str]) -> None:
    """Print the lines of a page, which are escaped already, in one write."""
    text = "\n".join(lines)
    if text:
        click.echo(encodable(text))


class Advance(Protocol):
    """Reports the progress."""

    def __call__(self, done: int, total: int | None = None) -> None:
        """Show that ``done`` of ``total`` are done. ``total`` is None if it is unknown."""


@contextmanager
def progress(title: str) -> Iterator[Advance]:
    """Yield a function that reports progress on stderr, to a bar on a terminal."""
    if sys.stderr.isatty():
        from celery_dynbeat.cli.base import tables  # noqa: PLC0415

        with tables.bar(title) as update:
            yield update
    else:
        yield _ignore


def _ignore(done: int, total: int | None = None) -> None:
    del done, total


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
