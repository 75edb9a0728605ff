"""Deliver the notices of a message to the URLs of its owner, or to a task of the application."""

import queue
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from celery_dynbeat.alerts.delivery import Delivered, DeliveryError, SendTask
from celery_dynbeat.alerts.notice_content import NoticeContent, as_kwargs
from celery_dynbeat.common.recipients import NoticeTask, Recipient, RecipientError
from celery_dynbeat.common.settings import Settings

#: Seconds that the function of the setting may take. The lease of the message must not end.
RECIPIENT_TIMEOUT = 10.0
NOT_IN_TIME = f"dynbeat_recipient did not return within {RECIPIENT_TIMEOUT:g} s"
#: URLs, a task, or None if the owner gets no notices.
_Found: TypeAlias = Sequence[str] | NoticeTask | None
_NAMESPACE = uuid.UUID("7c1f2f0c-5c55-4c39-8b1a-0f2b6b0d1c11")


@dataclass(frozen=True, slots=True)
class Plan:
    """The destinations of a message.

    If there are no destinations and no ``error``, its owner gets no notices.

    ``is_logged`` is true if the error is already logged.
    """

    destinations: Sequence[str]
    deliver: Callable[[Sequence[str]], Sequence[str | None]]
    error: str | None = None
    is_task: bool = False
    is_logged: bool = False


def _nowhere(destinations: Sequence[str]) -> Sequence[str | None]:
    return [None] * len(destinations)


def _send_no_task(name: str, kwargs: Mapping[str, Any], task_id: str) -> None:
    del kwargs, task_id
    msg = f"no application sends {name!r}"
    raise RuntimeError(msg)


class NoticeSending:
    """Delivers notices. Uses no database."""

    def __init__(
        self,
        settings: Settings,
        deliver: Callable[..., Delivered],
        send_task: SendTask | None,
    ) -> None:
        self._settings, self._deliver = settings, deliver
        self._send_task = send_task or _send_no_task
        self._caller = None if settings.recipient is None else _Caller(settings.recipient)

    def plan(self, message: Mapping[str, Any]) -> Plan:
        """Return where a message goes."""
        try:
            content = NoticeContent.from_json(message["payload"])
        except (ValueError, KeyError, TypeError) as error:
            # A newer version or manual SQL has written it.
            return Plan((), _nowhere, f"the message cannot be read: {type(error).__name__}")
        if not content.notices or self._caller is None:
            return Plan((), _nowhere)
        try:
            found = self._caller.recipient_of(content.notices[0].owner)
        except RecipientError as error:
            return Plan((), _nowhere, str(error), is_logged=True)
        if found is None:
            return Plan((), _nowhere)
        if isinstance(found, NoticeTask):
            # Each notice has a separate destination, so that a task that was sent is not sent
            # again.
            names = [f"task:{number}" for number in range(len(content.notices))]
            deliver = partial(self._to_task, message, content, found.name)
            return Plan(names, deliver, is_task=True)
        return Plan(list(dict.fromkeys(found)), partial(self._to_urls, content))

    def _to_urls(self, content: NoticeContent, urls: Sequence[str]) -> Sequence[str | None]:
        if not urls:
            return ()
        try:
            delivered = self._deliver(
                content,
                urls,
                application=None,
                flower_url=None,
                templates=self._settings.alert_templates,
                timeout=self._settings.alert_timeout,
            )
        except (DeliveryError, ValueError, KeyError, TypeError) as error:
            return [f"{error}" or type(error).__name__] * len(urls)
        return delivered.errors

    def _to_task(
        self,
        message: Mapping[str, Any],
        content: NoticeContent,
        task: str,
        destinations: Sequence[str],
    ) -> Sequence[str | None]:
        errors: list[str | None] = []
        for name in destinations:
            notice = content.notices[int(name.partition(":")[2])]
            # The id is the same for each try, so that the application can recognize a task that was
            # sent twice.
            key = f"{message['id']} {message['created_at']} {name}"
            try:
                self._send_task(task, as_kwargs(notice), str(uuid.uuid5(_NAMESPACE, key)))
            # The broker, or what the application overrides. The text may contain a password.
            except Exception as error:  # noqa: BLE001
                reason = f"the task of dynbeat_recipient was not sent: {type(error).__name__}"
                # The next ones would wait for the same broker.
                return [*errors, *[reason] * (len(destinations) - len(errors))]
            errors.append(None)
        return errors


class _Caller:
    """Calls the function of the setting in one daemon thread, for one owner at a time.

    The thread lasts as long as beat. While a call hangs, other calls fail at once. Otherwise, each
    of them would start a thread that never ends.
    """

    def __init__(self, recipient: Recipient) -> None:
        self._recipient = recipient
        self._calls: queue.SimpleQueue[tuple[str, Future[_Found]]] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._thread: threading.Thread | None = None
        self._late: Future[_Found] | None = None

    def recipient_of(self, owner: str) -> _Found:
        """Return the recipient of ``owner``. Raises RecipientError, and logs it once a minute."""
        # Each of the two waits is bounded, and the margin of the lease contains both.
        if not self._turn.acquire(timeout=RECIPIENT_TIMEOUT):
            raise RecipientError(NOT_IN_TIME)
        try:
            return self._call(owner)
        finally:
            self._turn.release()

    def _call(self, owner: str) -> _Found:
        if self._late is not None and not self._late.done():
            self._recipient.warn(owner, NOT_IN_TIME)
            raise RecipientError(NOT_IN_TIME)
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._work, name="dynbeat-recipient", daemon=True
            )
            self._thread.start()
        found: Future[_Found] = Future()
        self._calls.put((owner, found))
        try:
            return found.result(RECIPIENT_TIMEOUT)
        except FutureTimeoutError:
            self._late = found
            self._recipient.warn(owner, NOT_IN_TIME)
            raise RecipientError(NOT_IN_TIME) from None

    def _work(self) -> None:
        while True:
            owner, found = self._calls.get()
            try:
                found.set_result(self._recipient.of(owner))
            except RecipientError as error:
                found.set_exception(error)
