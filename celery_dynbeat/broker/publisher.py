"""Publish a batch of runs to the broker.

On Redis a batch is sent in pipelines (kombu 5.7), on AMQP with pipelined publisher confirms. A run
counts as sent only when the broker has accepted its message. The answers to each failure:

- The broker is unreachable, stops responding or blocks the connection: ``publish`` raises. No run
  of the batch counts as sent. The runs stay pending, and the sweep sends them again with the same
  ids.
- The broker refuses a queue or an exchange, or a router of the application raises: the runs are
  ``delayed``. They stay pending until the retry of ``broker.outages``.
- The row of a run is at fault, so that the run can never be sent: it is ``refused``. ``RowFault``
  lists the cases. All other runs are delayed.
- An overridden method (``broker.task_message``) sends no message: the run is ``declined``. If the
  method raises, the run is delayed. If it has published the run before it raises, or the broker
  does not confirm, the result is ``unknown``. The next call follows after
  ``dynbeat_dispatch_timeout``, as after a crash of beat.

RabbitMQ refuses by closing the channel and does not name the refused message. The publisher then
resends the unconfirmed messages on one channel per queue, so that no queue closes the channel of
another. A queue that was refused before starts there, after all others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, Protocol

from celery import Celery
from kombu import Producer
from kombu.exceptions import ChannelError, OperationalError

from celery_dynbeat.broker import outages, refusals
from celery_dynbeat.broker.compat import BatchPublishError, publish_batch
from celery_dynbeat.broker.connection import PING_INTERVAL, BrokerConnection
from celery_dynbeat.broker.outages import Kind, Outages, Scope
from celery_dynbeat.broker.publisher_confirms import ConfirmingChannel
from celery_dynbeat.broker.refusals import Refusal, RowFault
from celery_dynbeat.broker.remote_control import terminate_tasks
from celery_dynbeat.broker.task_message import MessageSender, NotPublishedError, RoutingError
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.planning.plan import OutgoingRun

#: Messages of one pipeline. More are not faster, and the pipeline holds commands and responses.
PIPELINE_SIZE = 250
#: After this number of driver errors for one queue, the rest of a batch is not tried.
MAX_ERRORS = 3
NOT_CONFIRMED = "the broker did not confirm the message: the queue is full, or has no leader"


@dataclass(slots=True)
class PublishResult:
    """The result of each run of a batch, by run id.

    The broker accepted the runs in ``sent``. The runs in ``refused`` can never be sent; the value
    is the error. The runs in ``delayed`` must not be tried before the given instant. An overridden
    method did not send the runs in ``declined``; the value is the reason. The broker may have
    accepted the runs in ``unknown``, and the runs in no field. ``queues`` has the
    queue to which a run was sent; None if Celery's routes do not name one.
    """

    sent: list[str] = field(default_factory=list)
    refused: dict[str, DispatchError] = field(default_factory=dict)
    delayed: dict[str, datetime] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    queues: dict[str, str | None] = field(default_factory=dict)

    def __len__(self) -> int:
        decided = (self.sent, self.refused, self.delayed, self.declined, self.unknown)
        return sum(len(ids) for ids in decided)

    def missing_from(self, batch: Sequence[OutgoingRun]) -> list[OutgoingRun]:
        """Return the runs of ``batch`` without a result."""
        done = {*self.sent, *self.refused, *self.delayed, *self.declined, *self.unknown}
        return [run for run in batch if run.run_id not in done]

    def add(self, part: "PublishResult") -> None:
        """Add the results of other runs."""
        self.sent += part.sent
        self.refused |= part.refused
        self.delayed |= part.delayed
        self.declined |= part.declined
        self.unknown |= part.unknown
        self.queues |= part.queues


class RunPublisher(Protocol):
    """The broker operations that beat calls. ``Publisher`` implements them over kombu."""

    def connect(self) -> None:
        """Connect to the broker. Raise an error of the transport when it is unreachable."""

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Publish ``batch`` in order and return the result of each run.

        Raises an error of the transport when the broker is unreachable.
        """

    def outage_delay(self) -> Callable[[OutgoingRun], datetime | None] | None:
        """Return a function that delays new runs whose queue is out of order, or None.

        The function returns the instant until which beat must not record the run, or None to
        record it now. None in place of the function means: record every run.
        """

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Ask the workers to terminate these runs.

        Raises DispatchError when the broker cannot broadcast the request, and an error of the
        transport when the broker is unreachable.
        """


class Publisher:
    """Publishes runs on its own broker connection, for one thread.

    ``now`` is the clock for ``expires_after``. Beat passes the database's clock.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime] | None = None) -> None:
        self._app = app
        self._now: Callable[[], datetime] = now or app.now
        self.outages = Outages(self._now)
        self._errors: Counter[Scope] = Counter()
        self._sender: MessageSender

    @cached_property
    def _broker(self) -> BrokerConnection:
        return BrokerConnection(self._app)

    @property
    def broker_errors(self) -> tuple[type[BaseException], ...]:
        """The exceptions that mean that the broker is unreachable or accepts no messages."""
        connection = self._broker.connection
        errors = (*connection.connection_errors, OperationalError, BatchPublishError, OSError)
        # kombu reports the errors of a Redis that is full or loading as channel errors.
        return errors if self._broker.is_amqp else (*errors, *connection.channel_errors)

    def connect(self) -> None:
        """Connect. Raise one of ``broker_errors`` after a few seconds.

        The broker is checked at most ten times per second, although beat calls this in each pass.
        """
        self._broker.connect(max_age=PING_INTERVAL)

    def close(self) -> None:
        """Close the connection. The next use opens another."""
        broker = self.__dict__.pop("_broker", None)
        if broker is not None:
            broker.close()

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Send ``batch`` in order. Raises ``broker_errors`` when the broker is unreachable."""
        result = PublishResult()
        # One sender for the whole batch: retries within the batch need the runs that overridden
        # methods have published.
        self._sender = self._new_sender()
        ready, suspect = batch, list[OutgoingRun]()
        if self.outages:
            ready, suspect = self._split_by_outage(batch, result)
        self._errors.clear()
        with self._abandoning_on_error():
            if ready:
                send = self._publish_confirmed if self._broker.is_amqp else self._publish_pipelined
                send(ready, result)
            if suspect:
                self._publish_separately(suspect, result)
        if self.outages:
            self._record_others_accepted(batch, result)
        return result

    def outage_delay(self) -> Callable[[OutgoingRun], datetime | None] | None:
        """Return a function that delays new runs with an outage, or None without outages.

        The function returns the instant until which beat must not record the run, or None. Runs of
        a refused queue would accumulate; instead, their fire times stay unplanned.
        """
        self.outages.expire()
        if not self.outages:
            return None
        sender = self._new_sender()

        def delayed_until(run: OutgoingRun) -> datetime | None:
            task = Scope(Kind.TASK, run.task)
            try:
                scope = sender.scope(run)
            except RoutingError:
                return self.outages.delay_new_run(task, run.schedule_id, certain=True)
            delay = self.outages.delay_new_run
            return delay(scope, run.schedule_id) or delay(task, run.schedule_id)

        return delayed_until

    @contextmanager
    def _abandoning_on_error(self) -> Iterator[None]:
        """Abandon the connection when an exception or a signal interrupts its use.

        A blocked connection stays open, because the broker uses it to report the end of the block.
        """
        try:
            yield
        except BaseException:
            if not self._broker.blocked:
                self._broker.abandon()
            raise

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Broadcast a request to the workers to terminate these runs. A worker may miss it.

        Raises one of ``broker_errors`` when the broker is unreachable, and DispatchError when it
        has no broadcasts or this user lacks the permission.
        """
        with self._abandoning_on_error():
            refusal = terminate_tasks(self._app, self._broker, run_ids)
        if refusal is not None:
            raise DispatchError(refusal)

    def _split_by_outage(
        self, batch: Sequence[OutgoingRun], result: PublishResult
    ) -> tuple[list[OutgoingRun], list[OutgoingRun]]:
        """Return the runs to send, and the runs of exact outages that are due for a retry.

        Delays all other runs.
        """
        ready: list[OutgoingRun] = []
        suspect: list[OutgoingRun] = []
        for run in batch:
            scope = self._scope(run, result)
            if scope is not None and not self._is_delayed(scope, run, result):
                (suspect if self.outages.is_exact(scope) else ready).append(run)
        return ready, suspect

    def _scope(self, run: OutgoingRun, result: PublishResult) -> Scope | None:
        """Return the destination of ``run``, or None if the router failed and delayed it."""
        try:
            return self._sender.scope(run)
        except RoutingError as error:
            self._record_refusal(run, refusals.from_router(run, error), result)
            return None

    def _is_delayed(self, scope: Scope, run: OutgoingRun, result: PublishResult) -> bool:
        retry_at = self.outages.retry_at(scope, immediately=self._errors[scope] < MAX_ERRORS)
        if retry_at is not None:
            self._delay(run, retry_at, result)
        return retry_at is not None

    def _delay(self, run: OutgoingRun, retry_at: datetime, result: PublishResult) -> None:
        if run.run_id in self._sender.published_by_application:
            result.unknown.add(run.run_id)
        else:
            result.delayed[run.run_id] = retry_at

    def _record_others_accepted(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        """Record the accepted runs: they show that the rows of other runs caused refusals."""
        sent = set(result.sent)
        for run in (run for run in batch if run.run_id in sent):
            self.outages.record_other_accepted(Scope(Kind.TASK, run.task), run.schedule_id)
            with suppress(RoutingError):
                self.outages.record_other_accepted(self._sender.scope(run), run.schedule_id)

    def _publish_pipelined(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        for start in range(0, len(batch), PIPELINE_SIZE):
            part = batch[start : start + PIPELINE_SIZE]
            try:
                self._publish_pipeline(part, result)
            except BatchPublishError as error:
                # Redis refused one queue. It has executed the commands of the other queues.
                if not refusals.names_queue(error.__cause__):
                    raise
                self._publish_separately(part, result)

    def _publish_pipeline(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        done = PublishResult()
        producer = self._producer(self._broker.connection)
        # kombu makes a client for each batch, which takes longer than one message.
        pipelined = publish_batch(producer) if len(batch) > 1 else nullcontext()
        with pipelined as kombu_batch, self._sender.in_batch(kombu_batch):
            for run in batch:
                if self._errors:
                    scope = self._scope(run, done)
                    if scope is None or self._is_delayed(scope, run, done):
                        continue
                if self._send(producer, run, done):
                    done.sent.append(run.run_id)
        result.add(done)

    def _publish_separately(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        """Send so that a refused queue does not affect the other queues."""
        if self._broker.is_amqp:
            self._publish_by_queue(batch, result)
        else:
            self._publish_singly(batch, result)

    def _publish_singly(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        producer = self._producer(self._broker.connection)
        for run in result.missing_from(batch):
            scope = self._scope(run, result)
            if scope is None or self._is_delayed(scope, run, result):
                continue
            if self._send(producer, run, result):
                result.sent.append(run.run_id)
                self.outages.record_accepted(scope)

    def _publish_confirmed(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        before = len(result)
        error = self._send_confirmed(batch, result)
        if error is not None:
            self._publish_by_queue(result.missing_from(batch), result)
        elif len(result) - before < len(batch):
            self._delay_unconfirmed(result.missing_from(batch), result)

    def _send_confirmed(
        self, batch: Sequence[OutgoingRun], result: PublishResult
    ) -> ChannelError | None:
        """Send ``batch`` on one channel. Return the error when the broker closed it, else None."""
        channel_error = None
        attempted: list[str] = []
        with ConfirmingChannel(self._broker) as confirming:
            producer = self._producer(confirming.channel)
            try:
                for run in batch:
                    confirming.label = run.run_id
                    if self._send(producer, run, result, confirming):
                        attempted.append(run.run_id)
                confirming.wait_for_confirms()
            except ChannelError as error:
                channel_error = error
                confirming.discard_unconfirmed()
            confirmed = _confirmed_ids(confirming, self._sender)
            result.sent += [run_id for run_id in attempted if run_id in confirmed]
        return channel_error

    def _delay_unconfirmed(self, runs: Sequence[OutgoingRun], result: PublishResult) -> None:
        for run in runs:
            scope = self._scope(run, result)
            if scope is not None:
                error = OperationalError(NOT_CONFIRMED)
                self._record_refusal(run, Refusal(scope, error, exact=True), result)

    def _publish_by_queue(self, batch: Sequence[OutgoingRun], result: PublishResult) -> None:
        queues: dict[Scope, list[OutgoingRun]] = {}
        for run in batch:
            scope = self._scope(run, result)
            if scope is not None:
                queues.setdefault(scope, []).append(run)
        for scope, runs in queues.items():
            self._publish_queue(scope, runs, result)

    def _publish_queue(
        self, scope: Scope, batch: Sequence[OutgoingRun], result: PublishResult
    ) -> None:
        """Send runs of one queue or exchange. Find a refused message by bisection."""
        before = len(result.sent)
        error = self._send_confirmed(batch, result)
        missing = result.missing_from(batch)
        has_accepted = len(result.sent) > before
        # A queue that accepted some runs and refused others is still out of order.
        if (has_accepted and not missing) or (
            error is not None and refusals.concerns_one_message(error)
        ):
            self.outages.record_accepted(scope)
        if error is None:
            self._delay_unconfirmed(missing, result)
        elif not refusals.concerns_one_message(error):
            for run in missing:
                self._record_refusal(run, refusals.from_broker(run, scope, error), result)
        elif len(batch) == 1:
            for run in missing:
                self._record_refusal(
                    run, refusals.from_single_message(run, error, self._sender), result
                )
        else:
            middle = (len(missing) + 1) // 2
            for half in (missing[:middle], missing[middle:]):
                if half:
                    self._publish_queue(scope, half, result)

    def _producer(self, channel: Any) -> Producer:
        producer: Producer = self._app.amqp.Producer(channel, auto_declare=False)
        return producer

    def _new_sender(self) -> MessageSender:
        driver_type = self._broker.connection.transport.driver_type
        return MessageSender(self._app, now=self._now, driver_type=driver_type)

    def _send(
        self,
        producer: Producer,
        run: OutgoingRun,
        result: PublishResult,
        confirming: ConfirmingChannel | None = None,
    ) -> bool:
        """Send one run and return whether it was handed to the driver.

        Raises errors that concern the whole broker or a channel of AMQP.
        """
        try:
            self._sender.send(producer, run)
        except NotPublishedError as reason:
            self._decline(run, reason, result, confirming)
            return False
        # kombu lists KeyError as a connection error of Redis. Here it means an unknown name, such
        # as the name of a compression.
        except (*self.broker_errors, ChannelError) as error:
            refusal = self._classify_broker_error(run, error)
            if refusal is None:
                raise
        # A router, a serializer, a signal receiver, an overridden method or a driver may raise
        # any exception.
        except Exception as error:  # noqa: BLE001
            refusal = refusals.from_exception(run, error, self._sender)
        else:
            result.queues[run.run_id] = self._sender.queue(run)
            return True
        if run.unstarted_since and refusals.is_from_override(run, refusal, self._sender):
            # The queue may hold its message, which may be why the method raises.
            result.declined[run.run_id] = refusals.error_summary(refusal.error)
            return False
        self._record_refusal(run, refusal, result)
        if self._sender.is_first_unreachable(run) and run.run_id in result.delayed:
            # After the untried runs of its task, which may go to another broker.
            result.delayed[run.run_id] += outages.FIRST_PAUSE
        return False

    def _classify_broker_error(self, run: OutgoingRun, error: Exception) -> Refusal | None:
        """Return the refusal of ``run``, or None for an error of the broker or a channel."""
        if isinstance(error, KeyError):
            return refusals.from_exception(run, error, self._sender)
        if self._broker.is_amqp and isinstance(error, ChannelError):
            # An overridden method may also use beat's channel. The driver reopens the channel
            # immediately, so its state proves nothing.
            return None
        if not self._broker.is_amqp and refusals.names_queue(error):
            return refusals.from_broker(run, refusals.scope_of(run, self._sender), error)
        if self._sender.is_overridden(run.task) and self._is_connection_alive():
            self._sender.record_unreachable(run, error)
            return refusals.from_exception(run, error, self._sender)
        return None

    def _decline(
        self,
        run: OutgoingRun,
        reason: NotPublishedError,
        result: PublishResult,
        confirming: ConfirmingChannel | None,
    ) -> None:
        """Record that an overridden method returned without sending ``run``.

        Raises an error of the broker where the method may have swallowed one.
        """
        if confirming is not None:
            confirming.check_open()
        if not self._is_connection_alive():
            message = f"the connection to the broker was lost while {run.task!r} was sent"
            raise OperationalError(message) from reason
        if run.run_id in self._sender.published_by_application:
            # This is a second call after a channel error, so the broker may have the first message.
            result.unknown.add(run.run_id)
        else:
            result.declined[run.run_id] = str(reason)

    def _is_connection_alive(self) -> bool:
        """Return whether beat's connection works, so that another connection caused the error."""
        broker, connection = self._broker, self._broker.connection
        if not connection.connected:
            return False
        broker.connect()
        # ``connect`` replaces a dead connection.
        return broker.connection is connection

    def _record_refusal(self, run: OutgoingRun, refusal: Refusal, result: PublishResult) -> None:
        """Refuse ``run`` permanently when its row is at fault, else delay it."""
        scope, error, fault, exact = refusal
        if fault is RowFault.YES:
            result.refused[run.run_id] = refusals.dispatch_error(run, error)
            return
        if scope.kind is not Kind.TASK and not exact:
            self._errors[scope] += 1
        outage = self.outages.record(
            scope, refusals.error_summary(error), schedule_id=run.schedule_id, exact=exact
        )
        if outage.tries >= outages.MAX_TRIES and (
            fault is RowFault.IF_PERSISTENT
            or (fault is RowFault.IF_OTHERS_ACCEPTED and outage.are_others_accepted(self._now()))
        ):
            result.refused[run.run_id] = refusals.dispatch_error(run, error)
        else:
            self._delay(run, outage.retry_at, result)


def _confirmed_ids(confirming: ConfirmingChannel, sender: MessageSender) -> set[str]:
    """Return the ids of runs that a broker has. Runs of other connections have no confirm."""
    return confirming.confirmed | (sender.published_by_application - confirming.labels)
