"""Publisher confirms of AMQP, pipelined: publish many, then wait until all are confirmed.

Source: RabbitMQ's "Consumer Acknowledgements and Publisher Confirms". Tags count the publishes of
a channel from 1; one ack may stand for all tags up to its own.
"""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kombu.exceptions import ChannelError, OperationalError

from celery_dynbeat.broker.connection import AT_ONCE, BrokerConnection

if TYPE_CHECKING:
    from collections.abc import Callable

CONFIRM_TIMEOUT = 30.0


class ConfirmingChannel:
    """A channel in confirm mode that knows which labelled publishes the broker has taken.

    Set ``label`` before publishing; several publishes under one label (a task and its task-sent
    event) count when all of them are confirmed.
    """

    def __init__(self, link: BrokerConnection) -> None:
        link.connect()
        self._link = link
        self.channel = link.connection.channel()
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
            # The answer to a farewell would wait behind the confirms that did not come.
            self._link.abandon()
        else:
            self.channel.close()

    @property
    def labels(self) -> set[str]:
        """The labels under which anything was published."""
        return self._labels

    @property
    def taken(self) -> set[str]:
        """The labels of which every publish was confirmed."""
        return self._labels - self._nacked - set(self._open.values())

    def drain(self) -> None:
        """Wait for the confirms; after 30 s what is missing counts as not taken.

        Raises OperationalError when nothing was taken, or when the broker is blocked, and
        ChannelError when it has closed the channel.
        """
        self.check_open()
        deadline = time.monotonic() + CONFIRM_TIMEOUT
        while self._open:
            self._link.check_blocked()
            try:
                remaining = max(AT_ONCE, deadline - time.monotonic())
                self._link.connection.drain_events(timeout=remaining)
            except TimeoutError as error:
                if self.taken:
                    return
                message = f"no message was confirmed within {CONFIRM_TIMEOUT:g} s"
                raise OperationalError(message) from error

    def check_open(self) -> None:
        """Raise ChannelError when the broker has closed the channel and the caller was not told.

        A method of the application may swallow the error. The driver opens the channel again, but
        not in confirm mode: no confirm would come.
        """
        if self._has_reopened:
            raise ChannelError(
                "the broker closed the channel, and the application's own apply_async or send_task"
                " caught the error"
            )

    def give_up(self) -> None:
        """Expect no more confirms: the broker has closed the channel, and kombu opened it again.

        What was not confirmed counts as not taken.
        """
        self._nacked.update(self._open.values())
        self._open.clear()

    def _watch_reopening(self, channel: Any) -> None:
        reopen: Callable[[], Any] = channel.open

        def reopened() -> Any:
            self._has_reopened = True
            return reopen()

        channel.open = reopened

    def _count_publishes(self, channel: Any) -> None:
        publish: Callable[..., Any] = channel.basic_publish

        def counted(*args: Any, **kwargs: Any) -> Any:
            # The driver reads the notice; what is written after it piles up in the buffers.
            self._link.check_blocked()
            result = publish(*args, **kwargs)
            self._last_tag += 1
            self._open[self._last_tag] = self.label
            self._labels.add(self.label)
            return result

        channel.basic_publish = counted

    def _on_ack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001 - amqp calls it so
        self._settle(tag, multiple=multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:  # noqa: FBT001
        self._nacked.update(self._settle(tag, multiple=multiple))

    def _settle(self, tag: int, *, multiple: bool) -> list[str]:
        tags = [open_tag for open_tag in self._open if open_tag <= tag] if multiple else [tag]
        return [self._open.pop(open_tag) for open_tag in tags if open_tag in self._open]
