"""The application, owner, actor and output that the options of a command line select."""

import getpass
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn
from zoneinfo import ZoneInfo

import click

from celery_dynbeat.api import Dynbeat, ScheduleInfo, dynbeat_of
from celery_dynbeat.api.acting import acting
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.cells import both_times
from celery_dynbeat.cli.base.columns import Column
from celery_dynbeat.cli.base.errors import fail
from celery_dynbeat.cli.base.output import Output
from celery_dynbeat.cli.base.pages import Page, pages
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.triggers.zones import load_zone

if TYPE_CHECKING:
    from celery_dynbeat.api import OwnerSchedules, Schedules


@dataclass
class Invocation:
    """One command line. It connects at its first use of the database.

    ``owner=None`` means all owners.
    """

    context: click.Context
    output: Output
    owner: str | None = ""
    all_owners: bool = False
    owner_given: bool = False
    actor: str | None = None
    reason: str = ""
    yes: bool = False

    @cached_property
    def dynbeat(self) -> Dynbeat:
        """The Dynbeat of the application. Raises ConfigurationError if it has none."""
        return dynbeat_of(self.context.obj.app)

    @property
    def schedules(self) -> "Schedules":
        """The calls across owners."""
        return self.dynbeat.schedules

    @property
    def mine(self) -> "OwnerSchedules":
        """The calls of the owner that ``--owner`` names."""
        return self.schedules.for_owner(self.owner or "")

    @property
    def calls(self) -> "OwnerSchedules | Schedules":
        """The calls of the owner, or those across owners with ``--all-owners``."""
        return self.schedules if self.owner is None else self.mine

    @property
    def run_calls(self) -> "OwnerSchedules | Schedules":
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

    def instant(self, given: TypedInstant | None) -> datetime | None:
        """Return the instant of an option. A time without an offset is in the owner's zone."""
        return None if given is None else given.resolve(now=lambda: self.now, zone=self.zone)

    def time(self, instant: datetime) -> str:
        """Return an instant in the owner's zone and in UTC, for a sentence."""
        return both_times(instant, self.zone, now=self.now)

    def label(self, name: str) -> str:
        """Return the name of a schedule for a sentence."""
        return f"schedule {name!r} of owner {self.owner!r}" if self.owner else f"schedule {name!r}"

    def when(self, info: ScheduleInfo) -> str:
        """Return the end of a sentence: when the schedule runs next."""
        if info.next_run_at is None:
            return ""
        return f"; next run {self.time(info.next_run_at)}"

    def load_zone(self, name: str) -> ZoneInfo:
        """Return a time zone. Raises UsageError for an unknown name."""
        try:
            return load_zone(name)
        except InvalidTriggerError as error:
            raise click.UsageError(str(error), self.context) from None

    def show(
        self,
        columns: Sequence[Column],
        items: Iterable[Any],
        *,
        hidden: Collection[str] | None = None,
    ) -> None:
        """Print the items. The owner is a column of the table only for several owners."""
        if hidden is None:
            hidden = () if self.owner is None else ("owner",)
        self.output.items(columns, items, zone=self.zone, hidden=hidden)

    def show_pages(
        self,
        columns: Sequence[Column],
        fetch: Callable[[str | None], Page],
        *,
        after: str | None,
        all_pages: bool,
        name: str | None = None,
    ) -> None:
        """Print a page, or all pages, of everything or of schedule ``name``.

        Notes on stderr name the next page, and the option for other owners if there is nothing.
        """
        count, cursor = 0, after
        for page in islice(pages(fetch, after=after), None if all_pages else 1):
            count, cursor = count + len(page.items), page.cursor
            # A page of a filtered list can be empty, although there are more.
            if page.items or not (count or cursor):
                self.show(columns, page.items)
        if cursor is not None:
            self.output.note(f"there are more: add --all, or --after {cursor}")
        elif not count and name is None and self.owner == "" and self.output.on_terminal:
            self.output.note(
                "This list is for the application itself: --all-owners lists all owners."
            )

    @property
    def can_ask(self) -> bool:
        """Whether an operator can answer a question."""
        return _can_ask()

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

    def refuse(self, text: str) -> NoReturn:
        """Print why nothing was done, and exit with status 1."""
        fail(self.context, text, as_json=self.output.as_json)

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Record the actor and the reason of each edit in the block, if the command has them."""
        if self.actor is None:
            yield
            return
        with acting(actor=self.actor, reason=self.reason):
            yield


def _can_ask() -> bool:
    return sys.stdin.isatty()


def shell_user() -> str:
    """Return the name of the user of this shell; its number if it has no name."""
    try:
        return getpass.getuser()
    # KeyError (before Python 3.13) means that the number is in no user database, as in some
    # containers.
    except (OSError, KeyError):
        return f"uid {os.getuid()}"
