"""The entries of Celery's ``beat_schedule``: as fields of the API, and their digests."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from celery import Celery
from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule

from celery_dynbeat.api import checks
from celery_dynbeat.api.fields import DEFAULTS, PAYLOAD
from celery_dynbeat.celery_schedules import trigger_of, without_zone
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.text import suggestion
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import ManagedRow
from celery_dynbeat.triggers import Trigger

_CELERY_KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
#: The fields that Celery does not have.
_POLICIES = {name: value for name, value in DEFAULTS.items() if name not in PAYLOAD}
_KNOWN_KEYS = _CELERY_KEYS | _POLICIES.keys()


def convert(context: Context, entry: Any) -> dict[str, Any] | Exception:
    """Return the fields of an entry, or the error if it is invalid."""
    try:
        fields = fields_of(entry, app=context.app)
    except (DynbeatError, ValueError, TypeError, KeyError) as error:
        return error
    trigger = without_zone(fields["trigger"], entry["schedule"], context.settings.timezone)
    return {**fields, "trigger": trigger}


def fields_of(entry: Mapping[str, Any], *, app: Celery) -> dict[str, Any]:
    """Return the fields of the API for an entry. Raises InvalidArgumentError."""
    if not isinstance(entry, Mapping):
        raise checks.invalid("entry", entry, "must be a dict with 'task' and 'schedule'")
    unknown = sorted(map(str, entry.keys() - _KNOWN_KEYS))
    if unknown:
        raise checks.invalid(unknown[0], entry.get(unknown[0]), _unknown(unknown[0]))
    for key in ("task", "schedule"):
        if key not in entry:
            raise checks.invalid("entry", dict(entry), f"has no {key!r}")
    options = checks.copy_as(dict, "options", entry.get("options") or {})
    policies = _pop_policies(entry, options)
    if entry.get("relative"):
        rule = "rounded intervals are not supported; give the schedule an anchor or a crontab"
        raise checks.invalid("relative", entry["relative"], rule)
    return {
        "task": entry["task"],
        "trigger": _trigger(entry["schedule"], app=app),
        "args": entry.get("args") or (),
        "kwargs": entry.get("kwargs") or {},
        "options": options,
        **policies,
    }


def _unknown(key: str) -> str:
    if key in {"enabled", "paused_reason", "paused_until"}:
        return "unknown key; leave the entry out, or pause its schedule: for_owner('').pause(name)"
    hint = suggestion(key, sorted(_KNOWN_KEYS))
    return f"unknown key; {hint} (options of apply_async, such as queue, go into 'options')"


def _pop_policies(entry: Mapping[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Return the policies among the keys of the entry and of ``options``; remove the latter.

    ``app.add_periodic_task(30, task.s(), overlap="skip")`` puts a policy into the options.
    """
    of_entry = {key: entry[key] for key in _POLICIES if key in entry}
    of_options = {key: options.pop(key) for key in _POLICIES if key in options}
    expires = _expires_after(options.pop("expires", None))
    twice = sorted(of_entry.keys() & of_options.keys())
    if twice:
        rule = "is given twice, as a key of the entry and in its options; remove one of them"
        raise checks.invalid(twice[0], of_entry[twice[0]], rule)
    policies = {**_POLICIES, **of_entry, **of_options}
    if expires is None:
        return policies
    if policies["expires_after"] is not None:
        rule = "is given twice, also as options['expires']; remove one of them"
        raise checks.invalid("expires_after", policies["expires_after"], rule)
    return {**policies, "expires_after": expires}


def _trigger(given: Any, *, app: Celery) -> Trigger:
    # As in Celery's beat, a crontab gets the time zone of the application.
    schedule = maybe_schedule(given, app=app) if isinstance(given, BaseSchedule) else given
    return trigger_of(schedule, timezone=str(app.timezone))


def _expires_after(expires: Any) -> Any:
    if expires is None or isinstance(expires, (int, float, timedelta)):
        return expires
    rule = "a fixed instant would expire all later runs; give seconds or a timedelta"
    raise checks.invalid("options['expires']", expires, rule)


def digest_of(context: Context, rows: Sequence[ManagedRow]) -> str | None:
    """Return the digest of the entries and of their ``rows``; None if they have to be written.

    A start that finds the same digest writes nothing. The digest covers the entries, the values
    that decide how they become rows, and the versions of these rows: each edit changes its version.
    None is the case if a row is quarantined, and if an entry has a value that cannot be compared.
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
    if isinstance(value, Retry):
        return value.to_json()
    msg = f"{type(value).__name__} cannot be compared"
    raise TypeError(msg)
