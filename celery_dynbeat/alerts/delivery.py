"""Deliver a message in a child process, with a limit on its time.

The command line imports this module, and not SQLAlchemy.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from celery_dynbeat.alerts.content import Content
    from celery_dynbeat.alerts.notice_content import NoticeContent

#: Sends a task of the application: its name, its keyword arguments and its id.
SendTask: TypeAlias = Callable[[str, Mapping[str, Any], str], object]
#: For the start of the child and its imports, in addition to the time-out of the servers.
START_TIMEOUT = timedelta(seconds=30)
NOT_IN_TIME = "the delivery did not end in time"
_ERROR_LENGTH = 300
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '[\w.]+'", re.MULTILINE)


class DeliveryError(Exception):
    """No URL was tried, because a template is invalid or a package is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What was sent. ``errors`` has None for each URL that accepted the message, in order."""

    title: str
    body: str
    errors: Sequence[str | None]


def deliver(
    content: "Content | NoticeContent",
    urls: Sequence[str],
    *,
    application: str | None,
    flower_url: str | None,
    templates: str | None,
    timeout: timedelta,
) -> Delivered:
    """Send ``content`` to each URL; wait for each of them at most ``timeout``.

    Raises DeliveryError if nothing was sent, or if it is not known. No error contains an URL.
    """
    task = {
        "content": content.to_json(),
        "urls": list(urls),
        "application": application,
        "flower_url": flower_url,
        "templates": templates,
        "timeout": timeout.total_seconds(),
    }
    try:
        child = subprocess.run(
            [sys.executable, "-m", "celery_dynbeat.alerts.deliver"],
            input=json.dumps(task),
            capture_output=True,
            text=True,
            timeout=(timeout + START_TIMEOUT).total_seconds(),
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        # Use the output of the child so far, because some URLs may have accepted the message.
        return _delivered(_text(late.stdout), "", len(urls), reason=NOT_IN_TIME)
    except OSError as error:
        raise DeliveryError(f"the delivery did not start: {error.strerror}") from None
    reason = f"exit status {child.returncode}"
    return _delivered(child.stdout, child.stderr, len(urls), reason=reason)


def _text(printed: bytes | str | None) -> str:
    return printed.decode() if isinstance(printed, bytes) else printed or ""


def _delivered(printed: str, errors: str, urls: int, *, reason: str) -> Delivered:
    """Return the output of the child. A URL without a result has the error ``reason``."""
    # A child that was killed may have printed a part of its last line.
    lines = printed[: printed.rfind("\n") + 1].splitlines()
    if not lines:
        # No other part of the standard error is used, because it can contain a URL.
        missing = _MISSING.search(errors)
        if missing is not None:
            reason = f"{missing[0]}: install celery-dynbeat[alerts]"
        raise DeliveryError(reason)
    message, *results = map(json.loads, lines)
    if "error" in message:
        raise DeliveryError(f"the template failed: {message['error']}"[:_ERROR_LENGTH])
    by_url = {each["url"]: each["error"] for each in results}
    return Delivered(
        title=message["title"],
        body=message["body"],
        errors=[by_url.get(number, reason) for number in range(urls)],
    )
