"""Recognize a ``beat_schedule`` whose rows have not changed since an earlier beat wrote them.

Writing the rows needs the API, which is a quarter of the modules of beat. The digest covers the
entries, the values that decide how they become rows, and the versions of these rows. Each edit of a
row changes its version.
"""

import hashlib
import json
from collections.abc import Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from celery.schedules import crontab, schedule

from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import ManagedRow
from celery_dynbeat.triggers import Trigger


def digest_of(context: Context, rows: Sequence[ManagedRow]) -> str | None:
    """Return the digest of the entries and of their ``rows``; None if they have to be written.

    That is the case if a row is quarantined, and if an entry has a value that cannot be compared.
    """
    if any(row.is_quarantined for row in rows):
        return None
    app, settings = context.app, context.settings
    content = {
        "package": version("celery-dynbeat"),
        "settings": repr(settings),
        "celery": [str(app.timezone), sorted(app.conf.accept_content)],
        "entries": _entries(context),
        "rows": sorted((row.name, row.version) for row in rows),
    }
    try:
        text = json.dumps(content, default=_plain)
    except (TypeError, ValueError):
        return None
    return hashlib.sha256(text.encode()).hexdigest()


def entries_digest_of(context: Context) -> str:
    """Return the digest of the entries alone, which identifies a release of the application.

    A value that cannot be compared counts as equal to other values of its type.
    """
    try:
        text = json.dumps([str(context.app.timezone), _entries(context)], default=_plain_or_type)
    except (TypeError, ValueError):
        # A key that is no text, or a value that contains itself: these entries are refused.
        text = repr(sorted(map(str, context.beat_schedule)))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _entries(context: Context) -> list[tuple[str, Any]]:
    # The order of entries has no meaning, but the order of nested arguments has.
    return sorted(context.beat_schedule.items(), key=lambda entry: str(entry[0]))


def _plain_or_type(value: Any) -> Any:
    try:
        return _plain(value)
    except TypeError:
        return type(value).__qualname__


def _plain(value: Any) -> Any:
    """Return what defines the schedule of an entry. Raises TypeError for unknown types."""
    if isinstance(value, timedelta):
        return ["timedelta", str(value)]
    if isinstance(value, Trigger):
        return value.to_json()
    # A subclass may depend on other values. nowfun cannot be compared.
    if type(value) is schedule and value.nowfun is None:
        return ["schedule", str(value.run_every), value.relative, str(value.tz)]
    if type(value) is crontab and value.nowfun is None:
        return ["crontab", repr(value), str(value.tz)]
    # A late import: few entries have a policy.
    from celery_dynbeat.common.retry import Retry  # noqa: PLC0415

    if isinstance(value, Retry):
        return value.to_json()
    msg = f"{type(value).__name__} cannot be compared"
    raise TypeError(msg)
