"""Runs to messages, and messages to the broker.

A batch goes out in pipelines where the transport has them (Redis), and under pipelined publisher
confirms on AMQP, so that only what the broker has taken counts as sent. What can go wrong:

- The broker goes away, falls silent or is blocked: ``publish`` raises; nothing of the batch counts
  as sent, the runs stay pending and the sweep sends them again under the same ids.
- One run cannot be sent at all (a payload that no serializer takes, a route to an exchange that
  does not exist): it is reported in ``refused``, the others go out.
- RabbitMQ answers the second kind by closing the channel, without saying which message it was:
  what was not confirmed is sent again one by one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from celery_dynbeat.link import Link
from celery_dynbeat.messages import Messages, Outgoing
from celery_dynbeat.remote_control import terminate_tasks

logger = logging.getLogger(__name__)

NOT_FOUND = 404
#: Messages of one pipeline: more are no faster, and its commands and answers are held twice.
PIPELINED = 250
#: As many runs as this do not all have a flaw of their own.
MANY = 10


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

        Raises one of ``broker_errors`` when the broker is away, and DispatchError when it does not
        carry the request: it has no broadcasts, or this user has not the right.
        """
        with self._undisturbed():
            refusal = terminate_tasks(self._app, self._link, run_ids)
        if refusal is not None:
            raise DispatchError(refusal)

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
        published = Published()
        for start in range(0, len(batch), PIPELINED):
            part = self._publish_part(batch[start : start + PIPELINED])
            published.sent += part.sent
            published.refused |= part.refused
        return published

    def _publish_part(self, batch: Sequence[Outgoing]) -> Published:
        try:
            return self._publish_batch(batch)
        except self._link.connection.channel_errors as error:
            return self._publish_each(batch, error)

    def _publish_batch(self, batch: Iterable[Outgoing]) -> Published:
        published, messages = Published(), self._messages()
        producer = self._producer(self._link.connection)
        with producer.batch():
            for run in batch:
                self._send(messages, producer, run, published)
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
        published, messages = Published(), self._messages()
        channel_errors = self._link.connection.channel_errors
        with ConfirmingChannel(self._link) as confirming:
            producer = self._producer(confirming.channel)
            try:
                for run in batch:
                    confirming.label = run.run_id
                    self._send(messages, producer, run, published, fatal=channel_errors)
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
        done, messages = {*published.sent, *published.refused}, self._messages()
        for run in (run for run in batch if run.run_id not in done):
            fatal = self._link.connection.channel_errors
            try:
                with ConfirmingChannel(self._link) as confirming:
                    confirming.label = run.run_id
                    producer = self._producer(confirming.channel)
                    self._send(messages, producer, run, published, fatal=fatal)
                    confirming.drain()
                    published.sent += confirming.taken
            except self._link.connection.channel_errors as error:
                if _is_final(error):
                    published.refused[run.run_id] = _refusal(run, error)

    def _producer(self, channel: Any) -> Producer:
        producer: Producer = self._app.amqp.Producer(channel, auto_declare=False)
        return producer

    def _messages(self) -> Messages:
        return Messages(self._app, now=self._now)

    def _send(
        self,
        messages: Messages,
        producer: Producer,
        run: Outgoing,
        published: Published,
        *,
        fatal: tuple[type[BaseException], ...] = (),
    ) -> None:
        try:
            messages.send(producer, run)
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
