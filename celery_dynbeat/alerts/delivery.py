"""Deliver a message in a child process, with a limit on its time."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from celery_dynbeat.alerts.content import Content

#: For the start of the child and its imports, in addition to the time-out of the servers.
START_TIMEOUT = timedelta(seconds=30)
_ERROR_LENGTH = 300
_MISSING = re.compile(r"^ModuleNotFoundError: No module named '[\w.]+'", re.MULTILINE)


class DeliveryError(Exception):
    """No URL was tried: a template is at fault, or a package is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What was sent. ``errors`` has None for each URL that accepted the message, in order."""

    title: str
    body: str
    errors: Sequence[str | None]


def deliver(
    content: Content,
    urls: Sequence[str],
    *,
    application: str | None,
    templates: str | None,
    timeout: timedelta,
) -> Delivered:
    """Send ``content`` to each URL; wait for each of them at most ``timeout``.

    Raises DeliveryError if nothing was sent. No error contains an URL.
    """
    task = {
        "content": content.to_json(),
        "urls": list(urls),
        "application": application,
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
    except subprocess.TimeoutExpired:
        raise DeliveryError("the delivery did not end in time") from None
    except OSError as error:
        raise DeliveryError(f"the delivery did not start: {error.strerror}") from None
    return _delivered(child)


def _delivered(child: "subprocess.CompletedProcess[str]") -> Delivered:
    try:
        answer = json.loads(child.stdout)
    except ValueError:
        # Nothing else of the standard error: it can contain a URL.
        missing = _MISSING.search(child.stderr)
        reason = f"exit status {child.returncode}"
        if missing is not None:
            reason = f"{missing[0]}: install celery-dynbeat[alerts]"
        raise DeliveryError(reason) from None
    if "error" in answer:
        raise DeliveryError(f"the template failed: {answer['error']}"[:_ERROR_LENGTH])
    return Delivered(title=answer["title"], body=answer["body"], errors=answer["results"])
