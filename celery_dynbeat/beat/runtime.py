"""The parts of a running beat, from its first pass to its end."""

import gc
import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from sqlalchemy.orm import Session

from celery_dynbeat import store
from celery_dynbeat.beat.config_digest import digest_of, entries_digest_of
from celery_dynbeat.beat.confirms import BackgroundExecutor, InlineExecutor
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.beat.duties import Duties, DutyThreads, Repeated
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.broker.refusals import error_summary
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import tz_release
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.heartbeat import HeartbeatWriter
from celery_dynbeat.store import nodes
from celery_dynbeat.store.schedules import managed_rows

if TYPE_CHECKING:
    from celery_dynbeat.beat.alerting import AlertDuties
    from celery_dynbeat.beat.config_sync import LeftOut
    from celery_dynbeat.beat.rollup import RollupDuty
    from celery_dynbeat.notify import Listener

logger = logging.getLogger(__name__)

#: The names of duties.
SYNC, COUNT = "write beat_schedule", "count runs"
COUNT_EVERY = timedelta(seconds=15)


class BeatRuntime:
    """A running beat: dispatcher, publisher, listener and heartbeat.

    The constructor needs the database: it checks the tables and writes ``beat_schedule``. It raises
    ConfigurationError or SchemaError if beat must not run. If ``beat_schedule`` cannot be written
    for another reason, beat sends the schedules that are there, and tries it again. ``wake`` is
    called from another thread after a change notification.
    """

    def __init__(
        self,
        context: Context,
        *,
        wake: Callable[[], None],
        failpoint: Callable[[str], None],
        poll_interval: timedelta,
    ) -> None:
        context.prepare_tables()
        # First: a beat of another application must not write the rows of beat_schedule.
        ensure_application(
            context.database, name=context.settings.application, now=context.clock.now
        )
        self._context = context
        self._name = f"celerybeat@{socket.gethostname()}:{os.getpid()}"
        self._entries_digest = entries_digest_of(context)
        self._heartbeat = HeartbeatWriter(
            database=context.database,
            clock=context.clock,
            kind=NodeKind.BEAT,
            name=self._name,
            timeout=context.settings.node_timeout,
            entries_digest=self._entries_digest,
        )
        # Before the entries are written, so that a beat with older entries does not undo this.
        self._heartbeat.beat()
        self._left_to_sync: LeftOut = {}
        self._is_superseded = False
        self._has_compared = False
        self._duties = Duties(context.database)
        self._run_comparison(waits=True)
        self._publisher = Publisher(context.app, now=context.clock.now)
        self.dispatcher = Dispatcher(
            database=context.database,
            publisher=self._publisher,
            clock=context.clock,
            settings=context.settings,
            duties=self._duties,
            failpoint=failpoint,
            executor=BackgroundExecutor()
            if context.database.supports_concurrent_writes
            else InlineExecutor(),
            poll_interval=poll_interval,
        )
        self._listener: Listener = context.notifier.listener(wake)
        self._listener.start()
        alerts_enabled = context.settings.alerts_enabled
        self._alerts = _start_alerts(context, node=self._name) if alerts_enabled else None
        self._rollup_duty: RollupDuty | None = None
        count = Repeated(COUNT, self._count_runs, COUNT_EVERY, delay=COUNT_EVERY)
        self._rollup = DutyThreads(self._duties, context.clock, [count])
        self._rollup.start()
        self._is_frozen = False
        logger.info("beat started", extra={"event": Event.BEAT_STARTED})

    def _run_comparison(self, *, waits: bool = False) -> None:
        self._duties.run(
            SYNC,
            lambda _: self._compare_entries(waits=waits),
            now=self._context.clock.now(),
            default=None,
        )

    def _compare_entries(self, *, waits: bool) -> None:
        """Write ``beat_schedule`` if this beat has the newest entries, and the rows have others.

        Of the living beats, those whose entries were first seen last have the newest ones. When
        they have been gone for dynbeat_node_timeout, another beat writes its entries again.
        """
        is_start = not self._has_compared
        # First, so that an error of each try delays one pass in an interval and not each pass.
        self._postpone_comparison()
        clock, settings = self._context.clock, self._context.settings
        newer = partial(
            nodes.has_newer_entries,
            name=self._name,
            silent_since=clock.now() - settings.node_timeout,
            counts_stopped=not is_start,
        )
        was_superseded = self._is_superseded
        self._is_superseded = self._context.database.read(newer)
        if self._is_superseded:
            if not was_superseded:
                logger.warning(
                    "a running beat has newer entries of beat_schedule; those of this beat are"
                    " not written: end this beat, or restart it with the newer release",
                    extra={"event": Event.CONFIG_SUPERSEDED},
                )
        elif is_start:
            if not self._context.database.read(self._is_synced):
                self._sync(waits=waits)
        elif was_superseded or self._has_other_writer():
            self._sync(waits=waits)
        elif self._left_to_sync:
            self._sync(only=self._left_to_sync, waits=waits)
        self._has_compared = True
        # Now it is known whether entries are left.
        self._postpone_comparison()

    def _count_runs(self, now: datetime) -> None:
        # A late import: the duty runs after the first passes.
        from celery_dynbeat.beat.rollup import RollupDuty  # noqa: PLC0415

        if self._rollup_duty is None:
            self._rollup_duty = RollupDuty(
                database=self._context.database,
                retention=self._context.settings.history_retention,
            )
        self._rollup_duty.run(now)

    def _postpone_comparison(self) -> None:
        interval = self._heartbeat.interval
        if self._left_to_sync:
            interval = self._context.settings.poll_interval
        self._compare_at = time.monotonic() + interval.total_seconds()

    def _has_other_writer(self) -> bool:
        """Return whether a beat with other entries has written the rows."""
        written = self._context.database.read(
            lambda session: store.get_entries_digest(session.connection())
        )
        return written not in {None, self._entries_digest}

    def _sync(self, *, only: "LeftOut | None" = None, waits: bool) -> None:
        """Write ``beat_schedule``. Entries that were left out are tried again."""
        # A late import: it edits schedules with the API, a quarter of the modules of beat.
        from celery_dynbeat.beat import config_sync  # noqa: PLC0415

        self._left_to_sync = config_sync.sync(self._context, only=only, waits=waits)

    def _is_synced(self, session: Session) -> bool:
        """Return whether ``beat_schedule`` is in the database, as a sync would write it."""
        rows = managed_rows(session)
        if not rows and not self._context.beat_schedule:
            return True
        recorded = store.get_beat_schedule(session.connection())
        return recorded is not None and recorded == digest_of(self._context, rows)

    def run_pass(self) -> timedelta:
        """Make a pass and update the heartbeat; return how long beat may sleep."""
        if time.monotonic() >= self._compare_at:
            self._run_comparison()
        try:
            pause = self.dispatcher.run_pass()
        except Exception as error:
            # During an outage of the database, the heartbeat would also fail.
            if not self._context.database.is_outage(error):
                self._beat(error=error_summary(error))
            raise
        self._heartbeat.note_progress()
        self._beat()
        self._freeze_once()
        return pause

    def _beat(self, *, error: str | None = None) -> None:
        others = [] if self._alerts is None else self._alerts.report()
        outages = self._publisher.outages.report([*self.dispatcher.report(), *others])
        self._heartbeat.beat(error=error, notifier=self._listener.transport, outages=outages)

    def _freeze_once(self) -> None:
        """Exclude the objects of the first pass from garbage collection.

        They stay until beat ends. Otherwise each collection during a burst would traverse them, for
        a tenth of its time.
        """
        # No collection before: SIGTERM raises SystemExit, and a finalizer would swallow it.
        if not self._is_frozen:
            self._is_frozen = True
            gc.freeze()

    def close(self) -> None:
        """Stop the listener, close the connections and deregister the node."""
        if self._alerts is not None:
            self._alerts.close()
        self._rollup.close()
        self._listener.stop()
        self._publisher.close()
        self.dispatcher.close()
        self._heartbeat.deregister()
        logger.info("beat stopped", extra={"event": Event.BEAT_STOPPED})


def ensure_application(
    database: Database, *, name: str | None, now: Callable[[], datetime]
) -> None:
    """Record the application ``name`` if none is recorded, else check that it is the recorded one.

    Beats of two applications on the same tables would delete each other's rows of
    ``beat_schedule``, and each beat would send the schedules of the other application to its own
    queues. Workers and processes that call the API only log a warning (``process.context``): they
    may have another name and share the tasks. ``name`` is the setting ``dynbeat_application``,
    else ``app.main``. It does not depend on the module that ``-A`` names.

    Raises ConfigurationError when the tables belong to another application, or when they belong to
    one and ``name`` is None.
    """
    recorded = database.read(lambda session: store.application_name(session.connection()))
    if recorded is None and name is not None:
        recorded = _record_application(database, name=name, now=now)
    release = tz_release()
    if recorded is not None and release is not None:
        database.run(
            lambda session: store.record_tz_release(session.connection(), release, only_first=True)
        )
    if recorded is None:
        logger.warning(
            "the application has no name, so a beat of another application could start on these"
            " tables: write Celery('proj'), or set dynbeat_application",
            extra={"event": Event.APPLICATION_UNNAMED},
        )
    elif recorded != name:
        _refuse_application(database.shown_url, recorded=recorded, name=name)


def _record_application(database: Database, *, name: str, now: Callable[[], datetime]) -> str:
    instant = now()
    recorded = database.run(
        lambda session: store.record_application(session.connection(), name=name, now=instant)
    )
    if recorded == name:
        logger.info(
            "the tables belong to application %r from now on",
            name,
            extra={"event": Event.APPLICATION_RECORDED},
        )
    return recorded


def _refuse_application(url: str, *, recorded: str, name: str | None) -> NoReturn:
    if name is None:
        this = "this beat's application has no name (app.main is None or '__main__')"
        rename = ""
    else:
        this = f"this beat's application is {name!r}"
        rename = (
            f" If {recorded!r} is the former name of {name!r}, run `celery -A your_app dynbeat"
            f" schema application {quote(name)}`."
        )
    msg = (
        f"the tables in {url} belong to application {recorded!r}, {this}: beats of two applications"
        " would delete each other's beat_schedule and send each other's schedules to their own"
        " queues. Give each application its own tables: another dynbeat_database_url, or on"
        " PostgreSQL a separate schema by search_path. For applications that share their tasks"
        f" and their beat_schedule, set dynbeat_application = {recorded!r} in both.{rename}"
    )
    raise ConfigurationError(msg)


def _start_alerts(context: Context, *, node: str) -> "AlertDuties":
    # A late import: a beat without alerts does not load it.
    from celery_dynbeat.beat.alerting import AlertDuties  # noqa: PLC0415

    alerts = AlertDuties(context, node=node)
    alerts.start()
    return alerts
