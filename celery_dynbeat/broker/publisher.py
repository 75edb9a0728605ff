"""Runs to messages, and messages to the broker.

A batch goes out in pipelines where the transport has them (Redis), and under pipelined publisher
confirms on AMQP, so that only what the broker has taken counts as sent. What can go wrong:

- The broker goes away, falls silent or is blocked: ``publish`` raises; nothing of the batch counts
  as sent, the runs stay pending and the sweep sends them again under the same ids.
- The broker refuses a queue or an exchange, or a router of the application raises: the runs are
  ``delayed``. They stay pending, and ``outages`` says when they are tried again.
- One run can never be sent, and its own row is at fault: it is ``refused``. The cases are those of
  ``Own``; anything else is delayed.
- The application overrides the method that sends the task (``broker.overrides``), and this
  sends nothing: the run is ``declined``. If it raises, the run is delayed. If it has published the
  run and raises then, or the broker does not confirm, nothing is known of the run: the next call
  comes after ``dynbeat_dispatch_timeout``, as behind a beat that died.

RabbitMQ refuses by closing the channel, without the message that it refused. What was not confirmed
is sent again, each queue on a channel of its own, so that no queue closes the channel of another. A
queue that was refused before begins there, behind the others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Producer
from kombu.exceptions import BatchPublishError, ChannelError, OperationalError

from celery_dynbeat.broker import outages, refusals
from celery_dynbeat.broker.connection import BrokerConnection
from celery_dynbeat.broker.outages import Kind, Outages, Scope
from celery_dynbeat.broker.overrides import NotPublishedError
from celery_dynbeat.broker.publisher_confirms import ConfirmingChannel
from celery_dynbeat.broker.refusals import Own, Refusal
from celery_dynbeat.broker.remote_control import terminate_tasks
from celery_dynbeat.broker.task_message import Messages, RoutingError
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.planning.outgoing_run import OutgoingRun

#: Messages of one pipeline: more are no faster, and its commands and answers are held twice.
PIPELINED = 250
#: After so many errors of a driver for one queue, the rest of a batch is not tried.
STRIKES = 3
NOT_CONFIRMED = "the broker did not confirm the message: the queue is full, or has no leader"


@dataclass(slots=True)
class Published:
    """What became of the runs of a batch, by id.

    ``sent``: the broker has taken it. ``refused``: it never will, with the reason. ``delayed``: not
    to be tried before this instant. ``declined``: a method of the application did not send it, for
    this reason. ``unknown``, or in none of them: it may or may not have been taken.
    """

    sent: list[str] = field(default_factory=list)
    refused: dict[str, DispatchError] = field(default_factory=dict)
    delayed: dict[str, datetime] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)

    def __len__(self) -> int:
        decided = (self.sent, self.refused, self.delayed, self.declined, self.unknown)
        return sum(len(ids) for ids in decided)

    def left_of(self, batch: Sequence[OutgoingRun]) -> list[OutgoingRun]:
        """Return the runs of ``batch`` that are still to be tried."""
        done = {*self.sent, *self.refused, *self.delayed, *self.declined, *self.unknown}
        return [run for run in batch if run.run_id not in done]

    def add(self, part: "Published") -> None:
        """Take over what became of other runs."""
        self.sent += part.sent
        self.refused |= part.refused
        self.delayed |= part.delayed
        self.declined |= part.declined
        self.unknown |= part.unknown


class Publisher:
    """A connection to the broker of its own, for one thread.

    ``now`` is the clock by which runs expire: the database's, in beat.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime] | None = None) -> None:
        self._app = app
        self._now: Callable[[], datetime] = now or app.now
        self.outages = Outages(self._now)
        self._strikes: Counter[Scope] = Counter()
        self._messages: Messages

    @cached_property
    def _link(self) -> BrokerConnection:
        return BrokerConnection(self._app)

    @property
    def broker_errors(self) -> tuple[type[BaseException], ...]:
        """What is raised when the broker is away, or takes nothing from anybody."""
        connection = self._link.connection
        away = (*connection.connection_errors, OperationalError, BatchPublishError, OSError)
        # A Redis that is full or loading answers with errors that kombu takes for a channel's.
        return away if self._link.is_amqp else (*away, *connection.channel_errors)

    def connect(self) -> None:
        """Be connected, or raise one of ``broker_errors`` after a few seconds."""
        self._link.connect()

    def close(self) -> None:
        """Drop the connection; the next use makes another."""
        link = self.__dict__.pop("_link", None)
        if link is not None:
            link.close()

    def publish(self, batch: Sequence[OutgoingRun]) -> Published:
        """Send ``batch``, in order. Raises one of ``broker_errors`` when the broker is away."""
        published = Published()
        # One for the whole batch: what it knows of a task, and which runs a method of the
        # application has published, holds when they are tried again.
        self._messages = self._new_messages()
        ready, suspect = batch, list[OutgoingRun]()
        if self.outages:
            ready, suspect = self._parted(batch, published)
        self._strikes.clear()
        with self._undisturbed():
            if ready:
                send = self._publish_confirmed if self._link.is_amqp else self._publish_pipelined
                send(ready, published)
            if suspect:
                self._publish_apart(suspect, published)
        if self.outages:
            self._note_passed(batch, published)
        return published

    def hold(self) -> Callable[[OutgoingRun], datetime | None] | None:
        """Return what says until when a new run is not to be recorded, or None: record all.

        Runs of a queue that is refused would pile up; their fire times wait unplanned instead.
        """
        self.outages.expire()
        if not self.outages:
            return None
        messages = self._new_messages()

        def held_until(run: OutgoingRun) -> datetime | None:
            task = Scope(Kind.TASK, run.task)
            try:
                scope = messages.scope(run)
            except RoutingError:
                return self.outages.hold(task, run.schedule_id, certain=True)
            holds = self.outages.hold
            return holds(scope, run.schedule_id) or holds(task, run.schedule_id)

        return held_until

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Abandon the connection when its use breaks off, be it by a signal.

        One that is blocked is kept: it tells when that is over.
        """
        try:
            yield
        except BaseException:
            if not self._link.blocked:
                self._link.abandon()
            raise

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to end these runs: a broadcast, which a worker may miss.

        Raises one of ``broker_errors`` when the broker is away, and DispatchError when it does not
        carry the request: it has no broadcasts, or this user has not the right.
        """
        with self._undisturbed():
            refusal = terminate_tasks(self._app, self._link, run_ids)
        if refusal is not None:
            raise DispatchError(refusal)

    def _parted(
        self, batch: Sequence[OutgoingRun], published: Published
    ) -> tuple[list[OutgoingRun], list[OutgoingRun]]:
        """Return the runs to send, and those of a queue that was refused before.

        What is not to be tried yet is delayed.
        """
        ready: list[OutgoingRun] = []
        suspect: list[OutgoingRun] = []
        messages = self._messages
        for run in batch:
            scope = self._scope(messages, run, published)
            if scope is not None and not self._is_held(scope, run, published):
                (suspect if self.outages.is_exact(scope) else ready).append(run)
        return ready, suspect

    def _scope(self, messages: Messages, run: OutgoingRun, published: Published) -> Scope | None:
        """Return where ``run`` goes; None: its router raises, and it is delayed."""
        try:
            return messages.scope(run)
        except RoutingError as error:
            self._settle(run, refusals.misrouted(run, error), published)
            return None

    def _is_held(self, scope: Scope, run: OutgoingRun, published: Published) -> bool:
        retry_at = self.outages.retry_at(scope, at_once=self._strikes[scope] < STRIKES)
        if retry_at is not None:
            self._delay(run, retry_at, published)
        return retry_at is not None

    def _delay(self, run: OutgoingRun, retry_at: datetime, published: Published) -> None:
        if run.run_id in self._messages.published_by_application:
            published.unknown.add(run.run_id)
        else:
            published.delayed[run.run_id] = retry_at

    def _note_passed(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        """Note what was taken: evidence against the rows of those that were refused meanwhile."""
        messages, sent = self._messages, set(published.sent)
        for run in (run for run in batch if run.run_id in sent):
            self.outages.passed(Scope(Kind.TASK, run.task), run.schedule_id)
            with suppress(RoutingError):
                self.outages.passed(messages.scope(run), run.schedule_id)

    def _publish_pipelined(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        for start in range(0, len(batch), PIPELINED):
            part = batch[start : start + PIPELINED]
            try:
                self._publish_pipeline(part, published)
            except BatchPublishError as error:
                # Of a queue that was refused; the commands of the others were executed, too.
                if not refusals.names_queue(error.__cause__):
                    raise
                self._publish_apart(part, published)

    def _publish_pipeline(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        messages, done = self._messages, Published()
        producer = self._producer(self._link.connection)
        with producer.batch():
            for run in batch:
                if self._strikes:
                    scope = self._scope(messages, run, done)
                    if scope is None or self._is_held(scope, run, done):
                        continue
                if self._send(producer, run, done):
                    done.sent.append(run.run_id)
        published.add(done)

    def _publish_apart(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        """Send so that a queue that is refused keeps no other from being taken."""
        if self._link.is_amqp:
            self._publish_by_queue(batch, published)
        else:
            self._publish_singly(batch, published)

    def _publish_singly(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        messages = self._messages
        producer = self._producer(self._link.connection)
        for run in published.left_of(batch):
            scope = self._scope(messages, run, published)
            if scope is None or self._is_held(scope, run, published):
                continue
            if self._send(producer, run, published):
                published.sent.append(run.run_id)
                self.outages.took(scope)

    def _publish_confirmed(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        before = len(published)
        error = self._confirmed(batch, published)
        if error is not None:
            self._publish_by_queue(published.left_of(batch), published)
        elif len(published) - before < len(batch):
            self._delay_unconfirmed(published.left_of(batch), published)

    def _confirmed(self, batch: Sequence[OutgoingRun], published: Published) -> ChannelError | None:
        """Send ``batch`` on one channel; return the error by which the broker closed it."""
        closed = None
        handed: list[str] = []
        with ConfirmingChannel(self._link) as confirming:
            producer = self._producer(confirming.channel)
            try:
                for run in batch:
                    confirming.label = run.run_id
                    if self._send(producer, run, published, confirming):
                        handed.append(run.run_id)
                confirming.drain()
            except ChannelError as error:
                closed = error
                confirming.give_up()
            taken = _taken(confirming, self._messages)
            published.sent += [run_id for run_id in handed if run_id in taken]
        return closed

    def _delay_unconfirmed(self, runs: Sequence[OutgoingRun], published: Published) -> None:
        messages = self._messages
        for run in runs:
            scope = self._scope(messages, run, published)
            if scope is not None:
                error = OperationalError(NOT_CONFIRMED)
                self._settle(run, Refusal(scope, error, exact=True), published)

    def _publish_by_queue(self, batch: Sequence[OutgoingRun], published: Published) -> None:
        messages = self._messages
        queues: dict[Scope, list[OutgoingRun]] = {}
        for run in batch:
            scope = self._scope(messages, run, published)
            if scope is not None:
                queues.setdefault(scope, []).append(run)
        for scope, runs in queues.items():
            self._publish_queue(scope, runs, published)

    def _publish_queue(
        self, scope: Scope, batch: Sequence[OutgoingRun], published: Published
    ) -> None:
        """Send runs of one queue or exchange. A message that is refused is found by halves."""
        before = len(published.sent)
        error = self._confirmed(batch, published)
        left = published.left_of(batch)
        has_taken = len(published.sent) > before
        # A queue that took some and refuses the others is still out of order.
        if (has_taken and not left) or (error is not None and refusals.is_of_message(error)):
            self.outages.took(scope)
        if error is None:
            self._delay_unconfirmed(left, published)
        elif not refusals.is_of_message(error):
            for run in left:
                self._settle(run, refusals.by_broker(run, scope, error), published)
        elif len(batch) == 1:
            for run in left:
                self._settle(run, refusals.of_single(run, error, self._messages), published)
        else:
            middle = (len(left) + 1) // 2
            for half in (left[:middle], left[middle:]):
                if half:
                    self._publish_queue(scope, half, published)

    def _producer(self, channel: Any) -> Producer:
        producer: Producer = self._app.amqp.Producer(channel, auto_declare=False)
        return producer

    def _new_messages(self) -> Messages:
        driver_type = self._link.connection.transport.driver_type
        return Messages(self._app, now=self._now, driver_type=driver_type)

    def _send(
        self,
        producer: Producer,
        run: OutgoingRun,
        published: Published,
        confirming: ConfirmingChannel | None = None,
    ) -> bool:
        """Send one run; return whether it is on its way to the broker.

        Raises what concerns the broker as a whole, or a channel of AMQP.
        """
        messages = self._messages
        try:
            messages.send(producer, run)
        except NotPublishedError as reason:
            self._decline(run, reason, published, confirming)
            return False
        # kombu takes a KeyError for an error of a connection to Redis. Here it is one of a name,
        # such as that of a compression.
        except (*self.broker_errors, ChannelError) as error:
            refusal = self._refusal_of_broker(run, error)
            if refusal is None:
                raise
        # A router, a serializer, a receiver of a signal, a method of the application or a driver
        # may raise anything.
        except Exception as error:  # noqa: BLE001
            refusal = refusals.of_message(run, error, messages)
        else:
            return True
        if run.waiting_since and refusals.is_of_override(run, refusal, messages):
            # Its message may be in the queue, and that may be why the method raises.
            published.declined[run.run_id] = refusals.said(refusal.error)
            return False
        self._settle(run, refusal, published)
        if messages.is_first_unreachable(run) and run.run_id in published.delayed:
            # Behind those of its task that were not tried: they may be for another broker.
            published.delayed[run.run_id] += outages.FIRST
        return False

    def _refusal_of_broker(self, run: OutgoingRun, error: Exception) -> Refusal | None:
        """Return what ``error`` says of ``run``; None: it concerns the broker, or a channel."""
        messages = self._messages
        if isinstance(error, KeyError):
            return refusals.of_message(run, error, messages)
        if self._link.is_amqp and isinstance(error, ChannelError):
            # Also from a method of the application: the channel may be beat's. The driver opens it
            # again at once, so its state proves nothing.
            return None
        if not self._link.is_amqp and refusals.names_queue(error):
            return refusals.by_broker(run, refusals.scope_of(run, messages), error)
        if messages.is_overridden(run.task) and self._still_works():
            messages.note_unreachable(run, error)
            return refusals.of_message(run, error, messages)
        return None

    def _decline(
        self,
        run: OutgoingRun,
        reason: NotPublishedError,
        published: Published,
        confirming: ConfirmingChannel | None,
    ) -> None:
        """Note that a method of the application returned and did not send ``run``.

        Raises an error of the broker where that may be why: the method may have swallowed it.
        """
        if confirming is not None:
            confirming.check_open()
        if not self._still_works():
            message = f"the connection to the broker was lost while {run.task!r} was sent"
            raise OperationalError(message) from reason
        if run.run_id in self._messages.published_by_application:
            # A second call, because the channel was closed: the first message may be out.
            published.unknown.add(run.run_id)
        else:
            published.declined[run.run_id] = str(reason)

    def _still_works(self) -> bool:
        """Return whether beat's own connection works: then an error was that of another one."""
        link, connection = self._link, self._link.connection
        if not connection.connected:
            return False
        link.connect()
        # It makes a new one where the old one is dead.
        return link.connection is connection

    def _settle(self, run: OutgoingRun, refusal: Refusal, published: Published) -> None:
        """Refuse ``run`` for good, if its own row is at fault; else delay it."""
        scope, error, own, exact = refusal
        if own is Own.YES:
            published.refused[run.run_id] = refusals.dispatch_error(run, error)
            return
        if scope.kind is not Kind.TASK and not exact:
            self._strikes[scope] += 1
        outage = self.outages.note(
            scope, refusals.said(error), schedule_id=run.schedule_id, exact=exact
        )
        if outage.tries >= outages.LAST_TRY and (
            own is Own.IF_IT_LASTS
            or (own is Own.IF_OTHERS_PASS and outage.others_pass(self._now()))
        ):
            published.refused[run.run_id] = refusals.dispatch_error(run, error)
        else:
            self._delay(run, outage.retry_at, published)


def _taken(confirming: ConfirmingChannel, messages: Messages) -> set[str]:
    """Return the runs that a broker has; one that another connection published has no confirm."""
    return confirming.taken | (messages.published_by_application - confirming.labels)
