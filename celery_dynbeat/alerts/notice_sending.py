"""Deliver the notices of a message to the URLs of its owner, or to a task of the application."""

import queue
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery_dynbeat.alerts.delivery import Delivered, DeliveryError, SendTask
from celery_dynbeat.alerts.notice_content import NoticeContent, as_kwargs
from celery_dynbeat.common.recipients import NoticeTask, Recipient, RecipientError
from celery_dynbeat.common.settings import Settings

#: Seconds that the function of the setting may take. The lease of the message must not end.
RECIPIENT_TIMEOUT = 10.0
NOT_IN_TIME = "dynbeat_recipient did not return in time"
_NAMESPACE = uuid.UUID("7c1f2f0c-5c55-4c39-8b1a-0f2b6b0d1c11")


@dataclass(frozen=True, slots=True)
class Plan:
    """Where a message goes. No destinations and no ``error``: its owner gets no notices."""

    destinations: Sequence[str]
    deliver: Callable[[Sequence[str]], Sequence[str | None]]
    error: str | None = None
    is_task: bool = False


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

    def plan(self, message: Mapping[str, Any]) -> Plan:
        """Return where a message goes."""
        try:
            content = NoticeContent.from_json(message["payload"])
        except (ValueError, KeyError, TypeError) as error:
            # A newer version has written it, or SQL by hand.
            return Plan((), _nowhere, f"the message cannot be read: {type(error).__name__}")
        recipient = self._settings.recipient
        if not content.notices or recipient is None:
            return Plan((), _nowhere)
        try:
            found = _recipient_of(recipient, content.notices[0].owner)
        except RecipientError as error:
            return Plan((), _nowhere, str(error))
        if found is None:
            return Plan((), _nowhere)
        if isinstance(found, NoticeTask):
            # A destination for each notice: a task that was sent is not sent again.
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
            # The same id for each try: the application can recognize a task that was sent twice.
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


def _recipient_of(recipient: Recipient, owner: str) -> Sequence[str] | NoticeTask | None:
    """Call the function in a daemon thread, for at most RECIPIENT_TIMEOUT."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def call() -> None:
        try:
            results.put(recipient.of(owner))
        except RecipientError as error:
            results.put(error)

    threading.Thread(target=call, name="dynbeat-recipient", daemon=True).start()
    try:
        found = results.get(timeout=RECIPIENT_TIMEOUT)
    except queue.Empty:
        raise RecipientError(NOT_IN_TIME) from None
    if isinstance(found, RecipientError):
        raise found
    result: Sequence[str] | NoticeTask | None = found
    return result
