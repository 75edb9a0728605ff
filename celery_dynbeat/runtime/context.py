"""What every call of the API stands on: the database, its clock, the settings, the notifier."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session

from celery_dynbeat import notify
from celery_dynbeat.common.clock import Clock, DatabaseClock
from celery_dynbeat.common.errors import InvalidScheduleError, InvalidTriggerError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db import schema
from celery_dynbeat.db.dialects import capabilities_of
from celery_dynbeat.db.engine import Database, check_synchronous
from celery_dynbeat.db.models import Schedule
from celery_dynbeat.planning.schedule_spec import ScheduleSpec, SpecColumns, spec_from_row
from celery_dynbeat.runtime import application
from celery_dynbeat.runtime.sessions import joined

if TYPE_CHECKING:
    from celery_dynbeat.runtime.task_names import TaskNames

T = TypeVar("T")


@dataclass
class Context:
    """One application's access to its schedules. Nothing is connected before the first use."""

    app: Celery
    shared_engine: Engine | None = None
    given_clock: Clock | None = None
    _prepared: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.shared_engine is not None:
            check_synchronous(self.shared_engine, given_as="engine")

    @cached_property
    def settings(self) -> Settings:
        """The dynbeat_* settings. Raises ConfigurationError."""
        name = application.name_of(self.app.main)
        return Settings.read(self.app.conf, timezone=str(self.app.timezone), application=name)

    @cached_property
    def database(self) -> Database:
        """The database that the settings name, or the engine that was shared."""
        if self.shared_engine is not None:
            return Database(engine=self.shared_engine)
        settings = self.settings
        return Database(settings.database_url, engine_options=settings.engine_options)

    @cached_property
    def clock(self) -> Clock:
        """The database's clock."""
        return self.given_clock or DatabaseClock(self.database.read_clock)

    @cached_property
    def task_names(self) -> "TaskNames":
        """What warns of the names of tasks that this process does not know."""
        # Workers store no schedules.
        from celery_dynbeat.runtime.task_names import TaskNames  # noqa: PLC0415

        return TaskNames(self.app)

    def present(self) -> datetime:
        """Return the present instant, by this machine's clock when there is no better one."""
        try:
            return self.clock.now()
        except SQLAlchemyError:
            return datetime.now(UTC)

    @cached_property
    def notifier(self) -> notify.Notifier:
        """What wakes beat."""
        return notify.choose(self.settings.notifier, app=self.app, database=self.database)

    def prepare(self, session: Session | None = None) -> None:
        """Prepare the tables once, and warn when they belong to another application.

        Raises SchemaError when they are missing or behind.
        """
        if self._prepared:
            return
        self.prepare_tables(session)
        name = self.settings.application
        if session is not None:
            application.warn_of_other(session.connection(), name=name)
        else:
            self.database.read(
                lambda session: application.warn_of_other(session.connection(), name=name)
            )
        self._prepared = True

    def prepare_tables(self, session: Session | None = None) -> None:
        """Create the tables on an embedded database; elsewhere only check them.

        With the caller's ``session`` they are only checked, on its own connection. Raises
        SchemaError when they are missing or behind.
        """
        create = self.settings.create_tables
        if session is not None:
            schema.check_connection(session.connection(), self.database.shown_url)
        elif self.database.capabilities.embedded if create is None else create:
            schema.upgrade(self.database)
        else:
            schema.check(self.database)

    def write(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``: in the caller's transaction, else in one that is committed."""
        session = joined(session)
        self.prepare(session)
        with self.refusing_unstorable():
            if session is None:
                return self.database.run(work)
            capabilities_of(session.get_bind().dialect).begin_write(session)
            return work(session)

    @contextmanager
    def refusing_unstorable(self) -> Iterator[None]:
        """Raise InvalidScheduleError for a text that the database's encoding does not have."""
        try:
            yield
        except UnicodeEncodeError as error:
            raise _unstorable(error) from error
        except DBAPIError as error:
            if not self.database.capabilities.is_unstorable(error):
                raise
            raise _unstorable(error) from error

    def read(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, in the caller's transaction when there is one.

        For rows by their keys; a query of many rows is for ``read_many``.
        """
        session = joined(session)
        self.prepare(session)
        return self.database.read(work) if session is None else work(session)

    def read_many(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Do the same for queries that follow an index, which takes a transaction to say so."""
        session = joined(session)
        self.prepare(session)
        return self.database.read_in_transaction(work) if session is None else work(session)

    def notify(self, session: Session, *, next_run_at: datetime | None, now: datetime) -> None:
        """Wake beat after the commit, if it could sleep past ``next_run_at`` otherwise."""
        if next_run_at is not None and next_run_at <= now + self.settings.poll_interval:
            self.notifier.notify(session)

    def rule(self, columns: SpecColumns) -> ScheduleSpec:
        """Return the rule that a row states, with the settings' defaults."""
        return spec_from_row(columns, self.settings)


@contextmanager
def naming(row: Schedule) -> Iterator[None]:
    """Let an InvalidTriggerError about a stored row name its owner and name, and the fix."""
    try:
        yield
    except InvalidTriggerError as error:
        msg = (
            f"schedule {row.name!r} of owner {row.owner!r} cannot be planned: {error}; give it"
            " another trigger with update(), or delete() it"
        )
        raise InvalidTriggerError(msg, field=error.field) from error


def _unstorable(error: Exception) -> InvalidScheduleError:
    said = str(getattr(error, "orig", error)).partition("\n")[0]
    msg = (
        "a name or another text holds a letter that the database's encoding does not have"
        f" ({said}): use others, or a database whose encoding is UTF8"
    )
    return InvalidScheduleError(msg)
