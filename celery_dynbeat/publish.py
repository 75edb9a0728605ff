"""Runs to messages, and messages to the broker.

A batch goes out in pipelines where the transport has them (Redis), and under pipelined publisher
confirms on AMQP, so that only what the broker has taken counts as sent. What can go wrong:

- The broker goes away, falls silent or is blocked: ``publish`` raises; nothing of the batch counts
  as sent, the runs stay pending and the sweep sends them again under the same ids.
- The broker refuses a queue or an exchange, or a router of the application raises: the runs are
  ``delayed``. They stay pending, and ``outages`` says when they are tried again.
- One run can never be sent, and its own row is at fault: it is ``refused``. The cases are those of
  ``Own``; anything else is delayed.

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

from celery_dynbeat import outages, refusals
from celery_dynbeat.confirms import ConfirmingChannel
from celery_dynbeat.errors import DispatchError
from celery_dynbeat.link import Link
from celery_dynbeat.messages import Messages, Outgoing, RoutingError
from celery_dynbeat.outages import Kind, Outages, Scope
from celery_dynbeat.refusals import Own, Refusal
from celery_dynbeat.remote_control import terminate_tasks

#: Messages of one pipeline: more are no faster, and its commands and answers are held twice.
PIPELINED = 250
#: After so many errors of a driver for one queue, the rest of a batch is not tried.
STRIKES = 3
NOT_CONFIRMED = "the broker did not confirm the message: the queue is full, or has no leader"


@dataclass(slots=True)
class Published:
    """What became of the runs of a batch, by id.

    ``sent``: the broker has taken it. ``refused``: it never will, with the reason. ``delayed``: not
    to be tried before this instant. What is in none of them may or may not have been taken.
    """

    sent: list[str] = field(default_factory=list)
    refused: dict[str, DispatchError] = field(default_factory=dict)
    delayed: dict[str, datetime] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.sent) + len(self.refused) + len(self.delayed)

    def left_of(self, batch: Sequence[Outgoing]) -> list[Outgoing]:
        """Return the runs of ``batch`` of which nothing is known yet."""
        known = {*self.sent, *self.refused, *self.delayed}
        return [run for run in batch if run.run_id not in known]


class Publisher:
    """A connection to the broker of its own, for one thread.

    ``now`` is the clock by which runs expire: the database's, in beat.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime] | None = None) -> None:
        self._app = app
        self._now: Callable[[], datetime] = now or app.now
        self.outages = Outages(self._now)
        self._strikes: Counter[Scope] = Counter()

    @cached_property
    def _link(self) -> Link:
        return Link(self._app)

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

    def publish(self, batch: Sequence[Outgoing]) -> Published:
        """Send ``batch``, in order. Raises one of ``broker_errors`` when the broker is away."""
        published = Published()
        ready, suspect = batch, list[Outgoing]()
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

    def hold(self) -> Callable[[Outgoing], datetime | None] | None:
        """Return what says until when a new run is not to be recorded, or None: record all.

        Runs of a queue that is refused would pile up; their fire times wait unplanned instead.
        """
        self.outages.expire()
        if not self.outages:
            return None
        messages = self._messages()

        def held_until(run: Outgoing) -> datetime | None:
            task = Scope(Kind.TASK, run.task)
            try:
                scope = messages.scope(run)
            except RoutingError:
                return self.outages.hold(task, certain=True)
            return self.outages.hold(scope) or self.outages.hold(task)

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
        self, batch: Sequence[Outgoing], published: Published
    ) -> tuple[list[Outgoing], list[Outgoing]]:
        """Return the runs to send, and those of a queue that was refused before.

        What is not to be tried yet is delayed.
        """
        ready: list[Outgoing] = []
        suspect: list[Outgoing] = []
        messages = self._messages()
        for run in batch:
            scope = self._scope(messages, run, published)
            if scope is not None and not self._is_held(scope, run, published):
                (suspect if self.outages.is_exact(scope) else ready).append(run)
        return ready, suspect

    def _scope(self, messages: Messages, run: Outgoing, published: Published) -> Scope | None:
        """Return where ``run`` goes; None: its router raises, and it is delayed."""
        try:
            return messages.scope(run)
        except RoutingError as error:
            self._settle(run, refusals.misrouted(run, error), published)
            return None

    def _is_held(self, scope: Scope, run: Outgoing, published: Published) -> bool:
        retry_at = self.outages.retry_at(scope, at_once=self._strikes[scope] < STRIKES)
        if retry_at is not None:
            published.delayed[run.run_id] = retry_at
        return retry_at is not None

    def _note_passed(self, batch: Sequence[Outgoing], published: Published) -> None:
        """Note what was taken: evidence against the rows of those that were refused meanwhile."""
        messages, sent = self._messages(), set(published.sent)
        for run in (run for run in batch if run.run_id in sent):
            self.outages.passed(Scope(Kind.TASK, run.task))
            with suppress(RoutingError):
                self.outages.passed(messages.scope(run))

    def _publish_pipelined(self, batch: Sequence[Outgoing], published: Published) -> None:
        for start in range(0, len(batch), PIPELINED):
            part = batch[start : start + PIPELINED]
            try:
                self._publish_pipeline(part, published)
            except BatchPublishError as error:
                # Of a queue that was refused; the commands of the others were executed, too.
                if not refusals.names_queue(error.__cause__):
                    raise
                self._publish_apart(part, published)

    def _publish_pipeline(self, batch: Sequence[Outgoing], published: Published) -> None:
        messages, done = self._messages(), Published()
        producer = self._producer(self._link.connection)
        with producer.batch():
            for run in batch:
                if self._strikes:
                    scope = self._scope(messages, run, done)
                    if scope is None or self._is_held(scope, run, done):
                        continue
                self._send(messages, producer, run, done)
        published.sent += done.sent
        published.refused |= done.refused
        published.delayed |= done.delayed

    def _publish_apart(self, batch: Sequence[Outgoing], published: Published) -> None:
        """Send so that a queue that is refused keeps no other from being taken."""
        if self._link.is_amqp:
            self._publish_by_queue(batch, published)
        else:
            self._publish_singly(batch, published)

    def _publish_singly(self, batch: Sequence[Outgoing], published: Published) -> None:
        messages = self._messages()
        producer = self._producer(self._link.connection)
        for run in published.left_of(batch):
            scope = self._scope(messages, run, published)
            if scope is None or self._is_held(scope, run, published):
                continue
            self._send(messages, producer, run, published)
            if published.sent[-1:] == [run.run_id]:
                self.outages.took(scope)

    def _publish_confirmed(self, batch: Sequence[Outgoing], published: Published) -> None:
        before = len(published)
        error = self._confirmed(batch, published)
        if error is not None:
            self._publish_by_queue(published.left_of(batch), published)
        elif len(published) - before < len(batch):
            self._delay_unconfirmed(published.left_of(batch), published)

    def _confirmed(self, batch: Sequence[Outgoing], published: Published) -> ChannelError | None:
        """Send ``batch`` on one channel; return the error by which the broker closed it."""
        messages, closed = self._messages(), None
        with ConfirmingChannel(self._link) as confirming:
            producer = self._producer(confirming.channel)
            try:
                for run in batch:
                    confirming.label = run.run_id
                    self._send(messages, producer, run, published)
                confirming.drain()
            except ChannelError as error:
                closed = error
                confirming.give_up()
            taken = confirming.taken
            published.sent += [run.run_id for run in batch if run.run_id in taken]
        return closed

    def _delay_unconfirmed(self, runs: Sequence[Outgoing], published: Published) -> None:
        messages = self._messages()
        for run in runs:
            scope = self._scope(messages, run, published)
            if scope is not None:
                error = OperationalError(NOT_CONFIRMED)
                self._settle(run, Refusal(scope, error, exact=True), published)

    def _publish_by_queue(self, batch: Sequence[Outgoing], published: Published) -> None:
        messages = self._messages()
        queues: dict[Scope, list[Outgoing]] = {}
        for run in batch:
            scope = self._scope(messages, run, published)
            if scope is not None:
                queues.setdefault(scope, []).append(run)
        for scope, runs in queues.items():
            self._publish_queue(scope, runs, published)

    def _publish_queue(self, scope: Scope, batch: Sequence[Outgoing], published: Published) -> None:
        """Send runs of one queue or exchange. A message that is refused is found by halves."""
        error = self._confirmed(batch, published)
        left = published.left_of(batch)
        # A queue that took some and refuses the others is still out of order.
        if not left or (error is not None and refusals.is_of_message(error)):
            self.outages.took(scope)
        if error is None:
            self._delay_unconfirmed(left, published)
        elif not refusals.is_of_message(error):
            for run in left:
                self._settle(run, refusals.by_broker(run, scope, error), published)
        elif len(batch) == 1:
            for run in left:
                self._settle(run, refusals.of_single(run, error), published)
        else:
            middle = (len(left) + 1) // 2
            for half in (left[:middle], left[middle:]):
                if half:
                    self._publish_queue(scope, half, published)

    def _producer(self, channel: Any) -> Producer:
        producer: Producer = self._app.amqp.Producer(channel, auto_declare=False)
        return producer

    def _messages(self) -> Messages:
        return Messages(self._app, now=self._now)

    def _send(
        self, messages: Messages, producer: Producer, run: Outgoing, published: Published
    ) -> None:
        """Send one run. Raises what concerns the broker as a whole, or a channel of AMQP."""
        try:
            messages.send(producer, run)
        # kombu takes a KeyError for an error of a connection to Redis. Here it is one of a name,
        # such as that of a compression.
        except (*self.broker_errors, ChannelError) as error:
            if isinstance(error, KeyError):
                self._settle(run, refusals.of_message(run, error, messages), published)
            elif self._link.is_amqp or not refusals.names_queue(error):
                raise
            else:
                scope = refusals.scope_of(run, messages)
                self._settle(run, refusals.by_broker(run, scope, error), published)
        # A router, a serializer, a receiver of a signal or a driver may raise anything.
        except Exception as error:  # noqa: BLE001
            self._settle(run, refusals.of_message(run, error, messages), published)
        else:
            if not self._link.is_amqp:
                published.sent.append(run.run_id)

    def _settle(self, run: Outgoing, refusal: Refusal, published: Published) -> None:
        """Refuse ``run`` for good, if its own row is at fault; else delay it."""
        scope, error, own, exact = refusal
        if own is Own.YES:
            published.refused[run.run_id] = refusals.dispatch_error(run, error)
            return
        if scope.kind is not Kind.TASK and not exact:
            self._strikes[scope] += 1
        outage = self.outages.note(scope, refusals.said(error), exact=exact)
        if outage.tries >= outages.LAST_TRY and (
            own is Own.IF_IT_LASTS
            or (own is Own.IF_OTHERS_PASS and outage.others_pass(self._now()))
        ):
            published.refused[run.run_id] = refusals.dispatch_error(run, error)
        else:
            published.delayed[run.run_id] = outage.retry_at
