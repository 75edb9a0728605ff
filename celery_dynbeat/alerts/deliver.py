"""Render one message and deliver it: ``python -m celery_dynbeat.alerts.deliver``.

Standard input is a ``Task`` as JSON. The URLs are not arguments: other users of the machine can
read those. Standard output is a JSON object in each line. The first one has ``title`` and ``body``,
or ``error`` if the message cannot be rendered. The others come as soon as a URL has a result: its
number as ``url``, and ``error``: null if it accepted the message, else a text that says why not and
does not contain the URL. So a URL that does not answer does not hide the result of another one.
"""

import json
import logging
import os
import queue
import re
import sys
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from functools import partial
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_dynbeat.alerts.content import Content, Example
from celery_dynbeat.alerts.rendering import links, render
from celery_dynbeat.common.alert_kinds import Severity

#: Apprise's types of notifications.
_TYPES = {Severity.ERROR: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}
#: What this process adds to the niceness of beat.
NICENESS = 10
#: Shorter parts of an URL are ordinary words, such as "com".
_SECRET_LENGTH = 5
_ERROR_LENGTH = 300
#: Apprise's class for json:// and jsons://, and the key of our fields in its payload.
JSON_SERVICE, FIELDS = "NotifyJSON", "alert"
#: Seconds that a URL gets in addition to the time limit of Apprise.
MARGIN = 2.0
NOT_UNDERSTOOD = "Apprise does not understand this URL, or a package that it needs is missing"
TIMED_OUT = "no answer in time"


def main() -> None:
    """Do the task of standard input, and end without waiting for servers that do not answer."""
    # Runs come before messages, on a machine that has no time for both.
    os.nice(NICENESS)
    task = json.load(sys.stdin)
    # No record is printed: those of Apprise and urllib3 contain URLs.
    logging.getLogger().addHandler(logging.NullHandler())
    # What a plug-in prints must not become part of the answer.
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in _perform(task):
            answer.write(f"{json.dumps(line)}\n")
            answer.flush()
    os._exit(0)


def _perform(task: dict[str, Any]) -> Iterator[dict[str, Any]]:
    content = Content.from_json(task["content"])
    links_to = {"application": task["application"], "flower_url": task["flower_url"]}
    try:
        title, body = render(content, folder=task["templates"], **links_to)
    # A template of the operator can raise any exception.
    except Exception as error:  # noqa: BLE001
        yield {"error": f"{type(error).__name__}: {error}"}
        return
    services = [_service(url) for url in task["urls"]]
    yield {"title": title, "body": body}
    send = partial(
        _send,
        fields=structured(content, **links_to),
        title=title,
        body=body,
        notify_type=_TYPES[content.severity],
        timeout=task["timeout"],
    )
    results: queue.SimpleQueue[tuple[int, str | None]] = queue.SimpleQueue()
    for number, service in enumerate(services):
        # A daemon thread: a plug-in may ignore the time limit of Apprise.
        deliver = partial(send, service, task["urls"][number])
        Thread(target=_put, args=(results, number, deliver), daemon=True).start()
    left = set(range(len(task["urls"])))
    deadline = time.monotonic() + task["timeout"] + MARGIN
    while left:
        try:
            number, result = results.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            yield from ({"url": number, "error": TIMED_OUT} for number in left)
            return
        left.discard(number)
        yield {"url": number, "error": result}


def _put(results: "queue.SimpleQueue[Any]", number: int, send: Callable[[], str | None]) -> None:
    try:
        results.put((number, send()))
    # A plug-in can raise any exception, and its text can contain the URL.
    except BaseException as error:  # noqa: BLE001
        results.put((number, type(error).__name__))


def _service(url: str) -> Any:
    """Return Apprise's object for a URL; the error as a text if there is none."""
    try:
        # Only here: the import takes 0.3 s.
        import apprise  # noqa: PLC0415

        return apprise.Apprise.instantiate(url) or NOT_UNDERSTOOD
    except ModuleNotFoundError:
        raise
    # As above.
    except Exception as error:  # noqa: BLE001
        return type(error).__name__


def _send(service: Any, url: str, *, fields: dict[str, Any], **message: Any) -> str | None:
    if isinstance(service, str):
        return service
    import apprise  # noqa: PLC0415

    if type(service).__name__ == JSON_SERVICE:
        service.payload_extras[FIELDS] = fields
    sender = apprise.Apprise()
    sender.add(service)
    outcome = sender.notify(
        body_format=apprise.NotifyFormat.TEXT, log_level=logging.WARNING, **message
    )
    return _error(next(iter(outcome.results)), url)


def structured(
    content: Content, *, application: str | None, flower_url: str | None
) -> dict[str, Any]:
    """Return what a JSON webhook gets besides the text: kinds, counts, schedules, runs and URLs."""
    fields = content.to_json()
    for group, shown in zip(fields["groups"], content.groups, strict=True):
        for cause, each in zip(group["causes"], shown.causes, strict=True):
            cause["error"] = each.error
            for example in cause["examples"]:
                example["urls"] = links(
                    Example(**example), application=application, flower_url=flower_url
                )
    return {"application": application, "total": content.total, **fields}


def _error(result: Any, url: str) -> str | None:
    if result:
        return None
    from apprise.result import AppriseResultStatus  # noqa: PLC0415

    if result.status == AppriseResultStatus.TIMEOUT:
        return TIMED_OUT
    logged = [str(entry.message) for entry in result.logs()]
    return without_secrets(" ".join(logged) or "refused", url)[:_ERROR_LENGTH]


def without_secrets(text: str, url: str) -> str:
    """Return ``text`` without any part of the URL that may be a password or a token."""
    parts = {each for form in (url, unquote(url)) for each in re.split(r"[/:@?&=,#+\s]", form)}
    secrets = {part for part in parts if len(part) >= _SECRET_LENGTH} | _passwords(url)
    for part in sorted(secrets, key=len, reverse=True):
        text = re.sub(re.escape(part), "***", text, flags=re.IGNORECASE)
    return text


def _passwords(url: str) -> set[str]:
    """Return user, password and values of the query, of any length, and their Basic form."""
    try:
        split = urlsplit(url)
        user, password = unquote(split.username or ""), unquote(split.password or "")
    except ValueError:
        return set()
    basic = b64encode(f"{user}:{password}".encode()).decode()
    values = {value for _, value in parse_qsl(split.query)}
    return {user, password, basic.rstrip("="), *values} - {""}


if __name__ == "__main__":
    main()
