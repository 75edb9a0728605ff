"""The shared parts of a process: settings, database, clock, notifier and sessions.

A call joins the transaction of the caller's session. A session with SAVEPOINTS in its ``info``
shares its connection with code that does not know the session, such as Django. In such a
transaction, each call that writes has a savepoint. The call either succeeds as a whole or changes
nothing, and the caller may continue after an error.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from celery import Celery
from celery.schedules import crontab
from sqlalchemy import URL, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session

from celery_dynbeat import notify, store
from celery_dynbeat.common.clock import Clock, DatabaseClock
from celery_dynbeat.common.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidTriggerError,
    TransactionRolledBackError,
)
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import Settings, application_name, zone_names
from celery_dynbeat.common.text import NAME_LENGTH, shorten
from celery_dynbeat.db import SAVEPOINTS, TableNames, models, schema
from celery_dynbeat.db.engine import Database, check_synchronous, in_use, savepoint
from celery_dynbeat.db.statements import capabilities_in, connection_of
from celery_dynbeat.planning import SpecColumns
from celery_dynbeat.process.task_names import TaskNames
from celery_dynbeat.telemetry import logs

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Hexadecimal digits at the end of the name of an entry that was too long.
_DIGEST_LENGTH = 16

#: Returns the session of the present transaction of the application, or None outside a transaction.
CurrentSession = Callable[[], object]


@dataclass
class Context:
    """The settings, database, clock and notifier of one application; each connects at first use.

    ``shared_engine`` replaces the engine that the settings describe, ``given_clock`` the clock of
    the database. ``current_session`` returns the session that a call without ``session`` joins.
    """

    app: Celery
    shared_engine: Engine | None = None
    given_clock: Clock | None = None
    current_session: CurrentSession | None = None
    #: The engine whose tables are prepared.
    _prepared: Engine | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        logs.connect()
        check_current_session(self.current_session)
        if self.shared_engine is not None:
            check_synchronous(self.shared_engine, given_as="engine")
        # The first call needs the list of zones, which takes some milliseconds. If no file can be
        # opened now, that call reads the list.
        with suppress(OSError):
            zone_names()

    @cached_property
    def settings(self) -> Settings:
        """The dynbeat_* settings. Raises ConfigurationError for an unknown or invalid one."""
        name = _name_of(self.app.main)
        return Settings.read(self.app.conf, timezone=str(self.app.timezone), application=name)

    @property
    def beat_schedule(self) -> Mapping[str, Any]:
        """The entries of ``beat_schedule``, and the one that Celery's beat adds."""
        given = dict(self.app.conf.beat_schedule or {})
        entries: dict[str, Any] = {_storable_name(name): entry for name, entry in given.items()}
        # Celery's own scheduler does the same for a result backend that does not expire results.
        if self.app.conf.result_expires and not self.app.backend.supports_autoexpire:
            entries.setdefault(
                "celery.backend_cleanup",
                {
                    "task": "celery.backend_cleanup",
                    "schedule": crontab("0", "4", "*"),
                    "options": {"expires": 12 * 3600},
                },
            )
        return entries

    @cached_property
    def database(self) -> Database:
        """The database of ``shared_engine``, or else of the settings."""
        settings = self.settings
        models.use_names(TableNames(settings.schema, settings.table_prefix))
        if self.shared_engine is not None:
            return Database(engine=self.shared_engine)
        options = settings.engine_options
        return Database(settings.database_url, engine_options=options)

    @cached_property
    def clock(self) -> Clock:
        """``given_clock``, or else the database's clock."""
        return self.given_clock or DatabaseClock(self.database.read_clock)

    @cached_property
    def task_names(self) -> TaskNames:
        """The check that warns of unknown task names."""
        return TaskNames(self.app)

    def now_or_host_time(self) -> datetime:
        """Return the database's time, or this host's time while the database is unreachable."""
        try:
            return self.clock.now()
        except SQLAlchemyError:
            return datetime.now(UTC)

    @cached_property
    def notifier(self) -> notify.Notifier:
        """The notifier that wakes beat."""
        return notify.choose(self.settings.notifier, app=self.app, database=self.database)

    def prepare(self, session: Session | None = None) -> None:
        """Prepare the tables at the first call; warn if they belong to another application.

        Raises SchemaError when they are missing or outdated.
        """
        engine = self.database.engine
        if self._prepared is engine:
            return
        self.prepare_tables(session)
        if session is not None:
            self._warn_if_other_application(session)
        else:
            self.database.read(self._warn_if_other_application)
        self._prepared = engine

    def _warn_if_other_application(self, session: Session) -> None:
        """Log a warning if the tables belong to another application."""
        name = self.settings.application
        recorded = None if name is None else store.application_name(session)
        if recorded is not None and recorded != name:
            logger.warning(
                "the tables belong to application %r, but this process belongs to %r: the beats of"
                " %r send its schedules; if both share their tasks, set dynbeat_application = %r"
                " here",
                recorded,
                name,
                recorded,
                recorded,
                extra={"event": Event.APPLICATION_DIFFERS},
            )

    def prepare_tables(self, session: Session | None = None) -> None:
        """Create the tables on an embedded database; elsewhere only check them.

        With the caller's ``session`` they are only checked, on its connection. Raises SchemaError
        when they are missing or outdated.
        """
        create = self.settings.create_tables
        if session is not None:
            schema.check_connection(session.connection(), self.database.shown_url)
        elif self.database.capabilities.embedded if create is None else create:
            schema.upgrade(self.database)
        else:
            schema.check(self.database)

    def now(self, session: Session | None) -> datetime:
        """Return the present instant, for a call that has no transaction except the caller's."""
        with in_use(self._to_join(session)):
            return self.clock.now()

    def write(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, in the caller's transaction or in a new one that is committed.

        Raises InvalidArgumentError for a text that the database cannot encode, and
        TransactionRolledBackError after a deadlock that ended the caller's transaction.
        """
        session = self._to_join(session)
        with self.rejecting_unstorable(), in_savepoint(session):
            self.prepare(session)
            if session is None:
                return self.database.run(work)
            capabilities = capabilities_in(session)
            capabilities.begin_write(connection_of(session))
            try:
                return _joining(session, work)
            except DBAPIError as error:
                if capabilities.ends_transaction(error):
                    raise TransactionRolledBackError from error
                raise

    def _to_join(self, given: object) -> Session | None:
        """Return the caller's session, or else the current session, or else None."""
        session = session_to_join(given)
        if session is not None or self.current_session is None:
            return session
        current = current_of(self.current_session)
        if current is not None:
            check_same_database(current, self.database.engine.url)
        else:
            self.database.refuse_transaction_of_django()
        return current

    def _prepared_to_join(self, given: object) -> Session | None:
        session = self._to_join(given)
        self.prepare(session)
        return session

    @contextmanager
    def rejecting_unstorable(self) -> Iterator[None]:
        """Raise InvalidArgumentError for a text that the database cannot encode."""
        try:
            yield
        except UnicodeEncodeError as error:
            raise _unstorable(error) from error
        except DBAPIError as error:
            if not self.database.capabilities.is_unstorable(error):
                raise
            raise _unstorable(error) from error

    def read(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Return ``work(session)``, in the caller's transaction if there is one.

        For reads by key. Use ``read_many`` for queries that return many rows.
        """
        session = self._prepared_to_join(session)
        return self.database.read(work) if session is None else _joining(session, work)

    def read_many(self, session: Session | None, work: Callable[[Session], T]) -> T:
        """Do the same for queries of many rows, in a transaction.

        The settings that make such a query follow its index last for one transaction.
        """
        session = self._prepared_to_join(session)
        if session is None:
            return self.database.read_in_transaction(work)
        return _joining(session, work)

    def notify_beat(self, session: Session, *, next_run_at: datetime | None, now: datetime) -> None:
        """Wake beat after the commit if it may sleep until after ``next_run_at``."""
        if next_run_at is not None and next_run_at <= now + self.settings.poll_interval:
            self.notifier.notify(session)


def reading(
    work: Callable[Concatenate[Context, Session, P], T],
) -> Callable[Concatenate[Context, P], T]:
    """Give each call of ``work`` the session of a transaction for queries of many rows."""

    @wraps(work)
    def in_transaction(context: Context, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return context.read_many(None, lambda session: work(context, session, *args, **kwargs))

    return in_transaction


def _name_of(main: object) -> str | None:
    """Return the name in Celery's ``app.main``, or None if it is not the name of an application."""
    try:
        # ``Celery(__name__)`` in a script names no application.
        return None if main == "__main__" else application_name(main)
    except ValueError:
        return None


def _joining(session: Session, work: Callable[[Session], T]) -> T:
    with in_use(session):
        return work(session)


@contextmanager
def naming_schedule(row: SpecColumns) -> Iterator[None]:
    """Make each InvalidTriggerError raised in the block name the schedule and the fix."""
    try:
        yield
    except InvalidTriggerError as error:
        part = "window" if error.field == "window" else "trigger"
        msg = (
            f"schedule {row.name!r} of owner {row.owner!r} cannot be planned: {error}; give it"
            f" another {part} with update(), or delete() it"
        )
        raise error.saying(msg) from error


def _unstorable(error: Exception) -> InvalidArgumentError:
    reason = str(getattr(error, "orig", error)).partition("\n")[0]
    msg = (
        "a name or another text contains a character that the database's encoding does not have"
        f" ({reason}): use other characters, or a database whose encoding is UTF8"
    )
    return InvalidArgumentError(msg)


def session_to_join(session: object) -> Session | None:
    """Return the session to join, or None if ``session`` is None.

    Of a ``scoped_session``, return the session of the present scope. Raises InvalidArgumentError
    with field ``"session"`` for any other value.
    """
    if session is None or isinstance(session, Session):
        return session
    if isinstance(session, scoped_session):
        scoped: Session = session()
        return scoped
    if hasattr(session, "run_sync"):
        rule = (
            "is asynchronous; call AsyncDynbeat, or `await session.run_sync(lambda session:"
            " mine.bound(session=session).create(...))`"
        )
    else:
        rule = (
            "must be a sqlalchemy.orm.Session; omit it for a separate transaction, or wrap a"
            " connection: Session(bind=connection)"
        )
    msg = f"session = {shorten(session)}: {rule}"
    raise InvalidArgumentError(msg, field="session")


@contextmanager
def in_savepoint(session: Session | None) -> Iterator[None]:
    """Give the writes of the block a savepoint if the session needs one for each call."""
    if session is None or SAVEPOINTS not in session.info:
        yield
        return
    try:
        # If its rollback fails, the other code rolls its transaction back.
        with savepoint(session):
            yield
    finally:
        # The other code can roll back to its own savepoint.
        session.expire_all()


def check_current_session(function: object) -> None:
    """Raise ConfigurationError unless ``function`` is None or can be called."""
    if function is None or callable(function):
        return
    raise ConfigurationError(
        f"current_session = {shorten(function)}: must be a function without arguments; in Django"
        " give celery_dynbeat.django.current_session, without calling it"
    )


def _storable_name(name: Any) -> Any:
    """Return the name of an entry, cut if it is longer than a name may be.

    ``add_periodic_task`` without a name uses the text of the call with all its arguments. The
    digest keeps two long texts with the same beginning apart, and is the same after a restart.
    """
    if not isinstance(name, str) or len(name) <= NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: NAME_LENGTH - _DIGEST_LENGTH - 4].rstrip()}... {digest}"


def current_of(function: CurrentSession) -> Session | None:
    """Return the session that ``function`` returns. Raises ConfigurationError for another value."""
    returned = function()
    try:
        return session_to_join(returned)
    except InvalidArgumentError as error:
        raise ConfigurationError(
            f"current_session returned {shorten(returned)}: must be a sqlalchemy.orm.Session, or"
            " None outside a transaction; in Django give celery_dynbeat.django.current_session"
        ) from error


def check_same_database(session: Session, url: URL) -> None:
    """Raise ConfigurationError if ``session`` is not for the database ``url``."""
    joined = session.get_bind().engine.url
    if _place(joined) != _place(url):
        raise ConfigurationError(
            f"current_session joins a transaction of the database {joined.database!r}, and the"
            f" schedules are in {url.database!r}: let both name the same database; in Django set"
            " dynbeat_database_url = 'django://default'"
        )


def _place(url: URL) -> tuple[str, str | None]:
    # The host is not compared, because a server can have several names.
    backend = url.get_backend_name()
    return "mysql" if backend == "mariadb" else backend, url.database
