"""The parts of a running beat, from its first pass to its end."""

import gc
import logging
import os
import socket
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from shlex import quote
from typing import TYPE_CHECKING, NoReturn

from celery_dynbeat import store
from celery_dynbeat.beat.config_sync import EntriesDuty
from celery_dynbeat.beat.confirms import BackgroundExecutor, Executor
from celery_dynbeat.beat.dispatcher import Dispatcher
from celery_dynbeat.beat.duties import Duty, DutyThreads, failing
from celery_dynbeat.beat.rollup import EVERY, RollupDuty
from celery_dynbeat.broker.outages import ReportedOutage
from celery_dynbeat.broker.publisher import Publisher
from celery_dynbeat.broker.refusals import error_summary
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.settings import tz_release
from celery_dynbeat.db.engine import Database
from celery_dynbeat.db.models import NodeKind
from celery_dynbeat.process.context import Context
from celery_dynbeat.process.heartbeat import HeartbeatWriter

if TYPE_CHECKING:
    from celery_dynbeat.beat.alerting import AlertDuties
    from celery_dynbeat.notify import Listener

logger = logging.getLogger(__name__)


class BeatRuntime:
    """A running beat: dispatcher, publisher, listener and heartbeat.

    The constructor needs the database: it checks the tables and writes ``beat_schedule``. It raises
    ConfigurationError if beat must not run. If ``beat_schedule`` cannot be written
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
        # A wrong path stops beat here. Otherwise, its schedules would have no limits.
        context.settings.owner_limits.load()
        entries = EntriesDuty(context, node=self._name)
        self._heartbeat = HeartbeatWriter(
            database=context.database,
            clock=context.clock,
            kind=NodeKind.BEAT,
            name=self._name,
            timeout=context.settings.node_timeout,
            entries_digest=entries.digest,
        )
        # Before the entries are written, so that a beat with older entries does not undo this.
        self._heartbeat.beat()
        self._sync = Duty(
            context.database, "write beat_schedule", entries.run, every=self._heartbeat.interval
        )
        self._sync.run(context.clock.now())
        entries.is_starting = False
        self._publisher = Publisher(context.app, now=context.clock.now)
        self.dispatcher = Dispatcher(
            database=context.database,
            publisher=self._publisher,
            clock=context.clock,
            settings=context.settings,
            failpoint=failpoint,
            executor=BackgroundExecutor()
            if context.database.supports_concurrent_writes
            else Executor(),
            poll_interval=poll_interval,
        )
        self._listener: Listener = context.notifier.listener(wake)
        self._listener.start()
        self._alerts = self._started_alerts()
        rollup = RollupDuty(database=context.database, retention=context.settings.history_retention)
        count = Duty(context.database, "count runs", rollup.run, every=EVERY, delay=EVERY)
        self._rollup = DutyThreads(context.clock, [count])
        self._rollup.start()
        self._is_frozen = False
        logger.info("beat started", extra={"event": Event.BEAT_STARTED})

    def _started_alerts(self) -> "AlertDuties | None":
        if not self._context.settings.alerts_enabled:
            return None
        # A late import: alerts are an extra.
        from celery_dynbeat.beat.alerting import AlertDuties  # noqa: PLC0415

        alerts = AlertDuties(self._context, node=self._name)
        alerts.start()
        return alerts

    def run_pass(self) -> timedelta:
        """Make a pass and update the heartbeat; return how long beat may sleep."""
        try:
            # First, because it notes an outage of the database, in which no node can be seen.
            pause = self.dispatcher.run_pass()
            self._sync.run(self._context.clock.now())
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
        outages = self._publisher.outages.report(self.report())
        self._heartbeat.beat(error=error, notifier=self._listener.transport, outages=outages)

    def report(self) -> Sequence[ReportedOutage]:
        """Return the duties that fail and the rows that are left out, for the row of this node."""
        of_alerts = [] if self._alerts is None else self._alerts.report()
        of_entries = failing([self._sync, *self._rollup.duties])
        return [*of_entries, *self.dispatcher.report(), *of_alerts]

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
    recorded = database.read(store.application_name)
    if recorded is None and name is not None:
        recorded = _record_application(database, name=name, now=now)
    release = tz_release()
    if recorded is not None and release is not None:
        database.run(lambda session: store.record_tz_release(session, release, only_first=True))
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
        lambda session: store.record_application(session, name=name, now=instant)
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
