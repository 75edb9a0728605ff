"""Render one message and deliver it: ``python -m celery_dynbeat.alerts.deliver``.

Standard input is a ``Task`` as JSON. The URLs are not arguments: other users of the machine can
read those. Standard output is a JSON object: ``title``, ``body``, and ``results``, one for each
URL: null if it was accepted, else a text that says why not and does not contain the URL. If the
message cannot be rendered: ``error``.
"""

import json
import logging
import os
import re
import sys
from base64 import b64encode
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from celery_dynbeat.alerts.content import Content
from celery_dynbeat.alerts.rendering import render
from celery_dynbeat.common.alert_kinds import Severity

#: Apprise's types of notifications.
_TYPES = {Severity.ERROR: "failure", Severity.WARNING: "warning", Severity.INFO: "info"}
#: What this process adds to the niceness of beat.
NICENESS = 10
#: Shorter parts of an URL are ordinary words, such as "com".
_SECRET_LENGTH = 5
_ERROR_LENGTH = 300
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
        json.dump(_perform(task), answer)
    os._exit(0)


def _perform(task: dict[str, Any]) -> dict[str, Any]:
    content = Content.from_json(task["content"])
    try:
        title, body = render(content, application=task["application"], folder=task["templates"])
    # A template of the operator can raise any exception.
    except Exception as error:  # noqa: BLE001
        return {"error": f"{type(error).__name__}: {error}"}
    urls = task["urls"]
    try:
        results = _send(urls, title, body, kind=_TYPES[content.severity], timeout=task["timeout"])
    except ModuleNotFoundError:
        raise
    # A plug-in can raise any exception, and its text can contain the URL.
    except Exception as error:  # noqa: BLE001
        results = [type(error).__name__] * len(urls)
    return {"title": title, "body": body, "results": results}


def _send(urls: list[str], title: str, body: str, *, kind: str, timeout: float) -> list[str | None]:
    # Only here: the import takes 0.3 s.
    import apprise  # noqa: PLC0415

    services = [apprise.Apprise.instantiate(url) for url in urls]
    sender = apprise.Apprise()
    for service in services:
        if service is not None:
            sender.add(service)
    if not len(sender):
        return [NOT_UNDERSTOOD] * len(urls)
    outcome = sender.notify(
        title=title,
        body=body,
        body_format=apprise.NotifyFormat.TEXT,
        notify_type=kind,
        timeout=timeout,
        log_level=logging.WARNING,
    )
    results = iter(outcome.results)
    return [
        NOT_UNDERSTOOD if service is None else _error(next(results), url)
        for service, url in zip(services, urls, strict=True)
    ]


def _error(result: Any, url: str) -> str | None:
    from apprise.result import AppriseResultStatus  # noqa: PLC0415

    if result:
        return None
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
