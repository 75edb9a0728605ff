"""Runs to messages, and messages to the broker.

A batch goes out in one pipeline where the transport has one (Redis), and under pipelined publisher
confirms on AMQP, so that only what the broker has taken counts as sent. What can go wrong:

- The broker goes away, falls silent or is blocked: ``publish`` raises; nothing of the batch counts
  as sent, the runs stay pending and the sweep sends them again under the same ids.
- One run cannot be sent at all (a payload that no serializer takes, a route to an exchange that
  does not exist): it is reported in ``refused``, the others go out.
- RabbitMQ answers the second kind by closing the channel, without saying which message it was:
  what was not confirmed is sent again one by one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Producer
from kombu.exceptions import BatchPublishError, OperationalError

from celery_dynbeat.confirms import ConfirmingChannel
from celery_dynbeat.errors import DispatchError
from celery_dynbeat.headers import (
    HEADER_ATTEMPT,
    HEADER_EXPIRES_AT,
    HEADER_OVERLAP,
    HEADER_OWNER,
    HEADER_RUN_ID,
    HEADER_SCHEDULE,
    HEADER_SCHEDULED_FOR,
    is_reserved,
)
from celery_dynbeat.link import Link

logger = logging.getLogger(__name__)

NOT_FOUND = 404
#: As many runs as this do not all have a flaw of their own.
MANY = 10
#: Options that belong into the task message; all others say how it travels.
_MESSAGE_OPTIONS = ("time_limit", "soft_time_limit", "ignore_result", "shadow", "countdown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A run on its way to the broker, and the ``version`` of its schedule when it was read.

    ``expires_at`` None: it may start at any time. ``attempt`` and ``retries`` are those that the
    run has behind it. ``waiting_since`` is when it was first sent, where nobody has begun it since.
    """

    run_id: str
    schedule_id: int
    owner: str
    name: str
    version: int
    task: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    scheduled_for: datetime
    expires_at: datetime | None = None
    overlap: str = "allow"
    attempt: int = 0
    retries: int = 0
    waiting_since: datetime | None = None

    @property
    def headers(self) -> dict[str, Any]:
        """The headers that tell a task which run it is."""
        given: Mapping[str, Any] = self.options.get("headers", {})
        return {
            # The API refuses what is reserved; a row that was typed by hand may hold it.
            **{key: value for key, value in given.items() if not is_reserved(key)},
            HEADER_RUN_ID: self.run_id,
            HEADER_SCHEDULE: self.name,
            HEADER_OWNER: self.owner,
            HEADER_SCHEDULED_FOR: self.scheduled_for.isoformat(),
            HEADER_ATTEMPT: self.attempt,
            **({HEADER_EXPIRES_AT: self.expires_at.isoformat()} if self.expires_at else {}),
            **({HEADER_OVERLAP: self.overlap} if self.overlap == "buffer_one" else {}),
            # What other tools know a scheduled task by.
            "celery_beat_task": True,
            "periodic_task_name": self.name,
        }


@dataclass(slots=True)
class Published:
    """What the broker has taken, and what it will never take, with the reason."""

    sent: list[str] = field(default_factory=list)
    refused: dict[str, DispatchError] = field(default_factory=dict)


class Publisher:
    """A connection to the broker of its own, for one thread.

    ``now`` is the clock by which runs expire: the database's, in beat.
    """

    def __init__(self, app: Celery, *, now: Callable[[], datetime] | None = None) -> None:
        self._app = app
        self._now: Callable[[], datetime] = now or app.now

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
        with self._undisturbed():
            send = self._publish_confirmed if self._link.is_amqp else self._publish_pipelined
            published = send(batch)
        return self._checked(published, batch)

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

        Raises one of ``broker_errors`` when the broker is away, and DispatchError when its kind
        carries no broadcasts.
        """
        connection = self._link.connection
        if not connection.supports_exchange_type("fanout"):
            kind = connection.transport.driver_type
            raise DispatchError(
                f"the broker ({kind}) carries no broadcasts, so overlap='cancel_previous' cannot"
                " end what runs; use Redis or RabbitMQ, or another overlap"
            )
        with self._undisturbed():
            self._link.connect()
            self._app.control.revoke(
                list(run_ids), terminate=True, connection=self._link.connection
            )

    def _checked(self, published: Published, batch: Sequence[Outgoing]) -> Published:
        """Return ``published``, unless every run of many was refused.

        Then the fault lies with what they share, such as a receiver of before_task_publish or an
        option of the transport, and not with each of them. Raises DispatchError.
        """
        if len(published.refused) == len(batch) >= MANY:
            first = next(iter(published.refused.values()))
            raise DispatchError(f"none of {len(batch)} runs could be sent; the first: {first}")
        return published

    def _publish_pipelined(self, batch: Sequence[Outgoing]) -> Published:
        try:
            return self._publish_batch(batch)
        except self._link.connection.channel_errors as error:
            return self._publish_each(batch, error)

    def _publish_batch(self, batch: Iterable[Outgoing]) -> Published:
        published = Published()
        producer = self._producer(self._link.connection)
        with producer.batch():
            for run in batch:
                self._send(producer, run, published)
        return published

    def _publish_each(self, batch: Iterable[Outgoing], error: BaseException) -> Published:
        """Send what can be sent when a batch broke on one of its queues.

        What cannot stays pending, for nobody knows how long that queue is out of order. Raises
        ``error`` when it is all of them: then it is the broker.
        """
        published = Published()
        for run in batch:
            try:
                one = self._publish_batch([run])
            except self._link.connection.channel_errors as refusal:
                logger.warning("run %s not taken by the broker: %s", run.run_id, refusal)
                continue
            published.sent += one.sent
            published.refused |= one.refused
        if not published.sent and not published.refused:
            raise error
        return published

    def _publish_confirmed(self, batch: Sequence[Outgoing]) -> Published:
        published = Published()
        channel_errors = self._link.connection.channel_errors
        with ConfirmingChannel(self._link) as confirming:
            producer = self._producer(confirming.channel)
            try:
                for run in batch:
                    confirming.label = run.run_id
                    self._send(producer, run, published, fatal=channel_errors)
                confirming.drain()
            except channel_errors:
                closed = True
            else:
                closed = False
            published.sent = [run.run_id for run in batch if run.run_id in confirming.taken]
        if closed:
            self._publish_singly(batch, published)
        return published

    def _publish_singly(self, batch: Iterable[Outgoing], published: Published) -> None:
        done = {*published.sent, *published.refused}
        for run in (run for run in batch if run.run_id not in done):
            try:
                with ConfirmingChannel(self._link) as confirming:
                    confirming.label = run.run_id
                    producer = self._producer(confirming.channel)
                    self._send(producer, run, published, fatal=self._link.connection.channel_errors)
                    confirming.drain()
                    published.sent += confirming.taken
            except self._link.connection.channel_errors as error:
                if _is_final(error):
                    published.refused[run.run_id] = _refusal(run, error)

    def _producer(self, channel: Any) -> Producer:
        producer: Producer = self._app.amqp.Producer(channel, auto_declare=False)
        return producer

    def _send(
        self,
        producer: Producer,
        run: Outgoing,
        published: Published,
        *,
        fatal: tuple[type[BaseException], ...] = (),
    ) -> None:
        try:
            send_task(self._app, producer, run, now=self._now)
        except (*self.broker_errors, *fatal):
            raise
        # Whatever a serializer, a router or a signal receiver of the application raises concerns
        # this run alone.
        except Exception as error:  # noqa: BLE001
            published.refused[run.run_id] = _refusal(run, error)
        else:
            if not fatal:
                published.sent.append(run.run_id)


def _is_final(error: BaseException) -> bool:
    """Return whether RabbitMQ will refuse the message as long as nobody changes something.

    403 access refused, 406 precondition failed (a queue declared otherwise, a message too large),
    404 for an exchange that is not there. A 404 for a queue whose node is down will pass.
    """
    code = getattr(error, "reply_code", None) or getattr(error, "code", None)
    return code in {403, 406} or (code == NOT_FOUND and "no exchange" in str(error))


def _refusal(run: Outgoing, error: BaseException) -> DispatchError:
    return DispatchError(
        f"run {run.run_id} of {run.name!r} cannot be sent: {type(error).__name__}: {error}",
    )


def send_task(
    app: Celery, producer: Producer, run: Outgoing, *, now: Callable[[], datetime]
) -> None:
    """Send one run as ``app.send_task`` would, without asking the result backend to listen for it.

    The publish signals and the task-sent event go out as for any task. When the run expires is for
    the guard to judge, by the database's clock: Celery's own ``expires`` counts by the clock of the
    worker's host.
    """
    options = {**_execution_options(app, run.task), **run.options}
    options.pop("headers", None)
    own = {key: options.pop(key) for key in _MESSAGE_OPTIONS if key in options}
    expires = options.pop("expires", None)
    routed = app.amqp.router.route(options, run.task, run.args, run.kwargs, app.tasks.get(run.task))
    if run.expires_at is not None:
        # As send_task does: the broker may drop what no worker will start any more.
        routed["expiration"] = max(0.0, (run.expires_at - now()).total_seconds())
    create: Callable[..., Any] = app.amqp.create_task_message
    message = create(
        run.run_id,
        run.task,
        list(run.args),
        dict(run.kwargs),
        expires=None if run.expires_at else expires,
        retries=run.retries,
        reply_to=app.thread_oid,
        create_sent_event=app.conf.task_send_sent_event,
        **own,
    )
    app.amqp.send_task_message(
        producer,
        run.task,
        message,
        headers=run.headers,
        retry=False,
        **routed,
    )


def _execution_options(app: Celery, task: str) -> dict[str, Any]:
    registered = app.tasks.get(task)
    if registered is None:
        return {}
    options: dict[str, Any] = registered._get_exec_options()  # noqa: SLF001 - as send_task does
    return {key: value for key, value in options.items() if value is not None}
