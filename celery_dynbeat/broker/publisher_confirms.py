"""Pipelined publisher confirms of AMQP: publish many messages, then wait for all confirms.

Source: RabbitMQ's "Consumer Acknowledgements and Publisher Confirms". Delivery tags count the
publishes of a channel from 1. One ack with ``multiple`` confirms all tags up to its own.
"""

import time
from types import TracebackType
from typing import Any, Self

from kombu.exceptions import ChannelError, OperationalError

from celery_dynbeat.broker.connection import NO_WAIT, BrokerConnection

CONFIRM_TIMEOUT = 30.0


class ConfirmingChannel:
    """A channel in confirm mode that records which labelled publishes the broker confirmed.

    Set ``label`` before each publish. A label with several publishes (a task and its task-sent
    event) is confirmed when all of them are.
    """

    def __init__(self, broker: BrokerConnection) -> None:
        broker.connect()
        self._broker = broker
        self.channel = broker.connection.channel()
        self.label = ""
        self._open: dict[int, str] = {}
        self._last_tag = 0
        self._labels: set[str] = set()
        self._nacked: set[str] = set()
        self._has_reopened = False
        self._watch_reopening(self.channel)
        self.channel.confirm_select()
        self.channel.events["basic_ack"].add(self._on_ack)
        self.channel.events["basic_nack"].add(self._on_nack)
        self._count_publishes(self.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None or not self.channel.is_open:
            return
        if self._open:
            # The reply to a close would wait for the missing confirms.
            self._broker.abandon()
        else:
            self.channel.close()

    @property
    def labels(self) -> set[str]:
        """The labels with at least one publish."""
        return self._labels

    @property
    def confirmed(self) -> set[str]:
        """The labels whose publishes are all confirmed."""
        return self._labels - self._nacked - set(self._open.values())

    def wait_for_confirms(self) -> None:
        """Wait for the confirms, for at most CONFIRM_TIMEOUT seconds.

        Publishes without a confirm then count as not confirmed. Raises OperationalError when
        nothing was confirmed or the broker blocks the connection, and ChannelError when it has
        closed the channel.
        """
        self.check_open()
        deadline = time.monotonic() + CONFIRM_TIMEOUT
        while self._open:
            self._broker.check_blocked()
            try:
                remaining = max(NO_WAIT, deadline - time.monotonic())
                self._broker.connection.drain_events(timeout=remaining)
            except TimeoutError as error:
                if self.confirmed:
                    return
                message = f"no message was confirmed within {CONFIRM_TIMEOUT:g} s"
                raise OperationalError(message) from error

    def check_open(self) -> None:
        """Raise ChannelError when the broker has closed the channel and the caller saw no error.

        A method of the application may swallow the error. The driver then reopens the channel
        without confirm mode, so no confirm would arrive.
        """
        if self._has_reopened:
            raise ChannelError(
                "the broker closed the channel, and the application's own apply_async or send_task"
                " caught the error"
            )

    def discard_unconfirmed(self) -> None:
        """Treat the missing confirms as refused.

        For a channel that the broker has closed and kombu has reopened.
        """
        self._nacked.update(self._open.values())
        self._open.clear()

    def _watch_reopening(self, channel: Any) -> None:
        reopen = channel.open

        def reopened() -> Any:
            self._has_reopened = True
            return reopen()

        channel.open = reopened

    def _count_publishes(self, channel: Any) -> None:
        publish = channel.basic_publish

        def counted(*args: Any, **kwargs: Any) -> Any:
            # The driver has read connection.blocked: later writes would only fill the buffers.
            self._broker.check_blocked()
            result = publish(*args, **kwargs)
            self._last_tag += 1
            self._open[self._last_tag] = self.label
            self._labels.add(self.label)
            return result

        channel.basic_publish = counted

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - the signature that amqp calls
        self._remove(tag, multiple=multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        self._nacked.update(self._remove(tag, multiple=multiple))

    def _remove(self, tag: int, *, multiple: bool) -> list[str]:
        tags = [open_tag for open_tag in self._open if open_tag <= tag] if multiple else [tag]
        return [self._open.pop(open_tag) for open_tag in tags if open_tag in self._open]
