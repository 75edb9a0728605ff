"""The ``dynbeat_*`` settings of the Celery configuration, checked and read once."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from celery_dynbeat.common import alert_settings
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.metrics_ports import MetricsPorts, metrics_ports
from celery_dynbeat.common.zone_names import nearest_zone

PREFIX = "dynbeat_"
_UNSET = object()
LOG_FORMATS = ("text", "json")
NOTIFIERS = ("auto", "postgresql", "broker", "polling")
MAX_BATCH_SIZE = 10_000
#: The present instant plus this duration is a date that each database can store.
MAX_DURATION = timedelta(days=36_525)
MAX_NAME_LENGTH = 255
CATCH_UPS = ("latest", "all", "none")
OVERLAPS = ("allow", "skip", "buffer_one", "cancel_previous")
ON_LOST = ("record", "rerun")


class Configuration(Protocol):
    """The part of ``app.conf`` that this module needs."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""

    def keys(self) -> Iterable[str]:
        """Return the keys that have a default or a value."""


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        msg = "must be a non-empty string"
        raise ValueError(msg)
    return value


def application_name(value: object) -> str:
    """Return a valid name of an application. Raises ValueError for any other value."""
    if (
        not isinstance(value, str)
        or not 0 < len(value) <= MAX_NAME_LENGTH
        or not value.isprintable()
        or value != value.strip()
    ):
        msg = (
            f"must be a string of 1 to {MAX_NAME_LENGTH} printable characters, without white space"
            " at its ends"
        )
        raise ValueError(msg)
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        msg = "must be True or False"
        raise ValueError(msg)  # noqa: TRY004 - read() expects ValueError
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        msg = "must be a dict of keyword arguments for sqlalchemy.create_engine"
        raise ValueError(msg)  # noqa: TRY004
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = "must be a whole number of at least 1"
        raise ValueError(msg)
    return value


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        msg = "must be a whole number of at least 0"
        raise ValueError(msg)
    return value


def _batch(value: object) -> int:
    # The ids of a batch are the parameters of one statement. Drivers allow some ten thousands.
    if _count(value) > MAX_BATCH_SIZE:
        msg = f"must be at most {MAX_BATCH_SIZE}"
        raise ValueError(msg)
    return _count(value)


def _duration(value: object) -> timedelta:
    seconds = _seconds(value)
    if seconds is None or not seconds >= timedelta.resolution.total_seconds():
        msg = "must be a positive number of seconds or a positive timedelta"
        raise ValueError(msg)
    if seconds > MAX_DURATION.total_seconds():
        msg = f"must be at most {MAX_DURATION.days} days (100 years): set less, or leave it unset"
        raise ValueError(msg)
    return timedelta(seconds=seconds)


def _seconds(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _delay(value: object) -> timedelta:
    """Return a duration, which may be zero."""
    return timedelta(0) if _seconds(value) == 0 else _duration(value)


def _patterns(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        msg = "must be a list of names, in which * matches any characters"
        raise ValueError(msg)  # noqa: TRY004
    return tuple(_text(pattern) for pattern in value)


def _schema(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_][\w$-]{0,62}", value, re.ASCII):
        msg = "must be the name of a schema: up to 63 letters, digits, and the characters _ $ -"
        raise ValueError(msg)
    return value


def _table_prefix(value: object) -> str:
    rule = r"dynbeat_|(?!dynbeat_)[a-z][a-z0-9_]{0,19}"
    if not isinstance(value, str) or not re.fullmatch(rule, value):
        msg = (
            "must be up to 20 lower-case letters, digits and underscores that begin with a letter,"
            " and not with 'dynbeat_'; such as 'billing_'"
        )
        raise ValueError(msg)
    return value


def _web_url(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^\s@]+", value):
        msg = "must be the address of Flower, such as 'https://flower.example.com', without a user"
        raise ValueError(msg)
    return value.rstrip("/")


def _folder(value: object) -> str:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    return _text(path)


def _one_of(*choices: str) -> Callable[[object], str]:
    def check(value: object) -> str:
        if value not in choices:
            msg = "must be one of " + ", ".join(repr(choice) for choice in choices)
            raise ValueError(msg)
        return str(value)

    return check


def _zone(value: object) -> str:
    try:
        ZoneInfo(_text(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        nearest = nearest_zone(value) if isinstance(value, str) else None
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        msg = f"must be a time zone of the tz database, such as 'Europe/Berlin'{hint}"
        raise ValueError(msg) from None
    return str(value)


def _setting(default: Any, check: Callable[[object], Any]) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings with their defaults. In the configuration each name starts with ``dynbeat_``.

    A policy applies to schedules that do not set it. None means: no limit, no expiry, never pause.
    ``schema`` None: that of the connection. ``create_tables`` None: create tables on an embedded
    database only. ``timezone`` unset: the time zone of the Celery application. ``application``
    None: the application has no name. ``alerts`` None: on if a target of ``alert_urls`` has a URL.
    ``ping_hosts`` None: no ping URLs. ``expected_beats`` and ``expected_workers`` None: a node that
    died and was not replaced is missing.
    """

    # No repr: they hold passwords, and some tracebacks show the repr of local variables.
    database_url: str = field(
        default="sqlite:///dynbeat.sqlite3", metadata={"check": _text}, repr=False
    )
    engine_options: Mapping[str, Any] = field(
        default_factory=dict, metadata={"check": _mapping}, repr=False
    )
    schema: str | None = _setting(None, _schema)
    table_prefix: str = _setting("dynbeat_", _table_prefix)
    create_tables: bool | None = _setting(None, _flag)
    application: str | None = _setting(None, application_name)
    timezone: str = _setting("UTC", _zone)
    notifier: str = _setting("auto", _one_of(*NOTIFIERS))
    log_format: str = _setting("text", _one_of(*LOG_FORMATS))
    poll_interval: timedelta = _setting(timedelta(seconds=5), _duration)
    batch_size: int = _setting(500, _batch)
    dispatch_timeout: timedelta = _setting(timedelta(seconds=30), _duration)
    resend_after: timedelta = _setting(timedelta(hours=1), _duration)
    node_timeout: timedelta = _setting(timedelta(seconds=60), _duration)
    catch_up: str = _setting("latest", _one_of(*CATCH_UPS))
    catch_up_window: timedelta | None = _setting(None, _duration)
    overlap: str = _setting("allow", _one_of(*OVERLAPS))
    max_run_time: timedelta = _setting(timedelta(hours=1), _duration)
    jitter: timedelta = _setting(timedelta(0), _delay)
    expires_after: timedelta | None = _setting(None, _duration)
    on_lost: str = _setting("record", _one_of(*ON_LOST))
    pause_after_failures: int | None = _setting(None, _count)
    history_retention: timedelta = _setting(timedelta(days=30), _duration)
    audit: bool = _setting(default=True, check=_flag)
    audit_retention: timedelta = _setting(timedelta(days=90), _duration)
    min_interval: timedelta = _setting(timedelta(seconds=1), _delay)
    max_schedules_per_owner: int | None = _setting(None, _count)
    allowed_tasks: tuple[str, ...] | None = _setting(None, _patterns)
    max_payload_bytes: int = _setting(65_536, _count)
    expected_beats: int | None = _setting(None, _number)
    expected_workers: int | None = _setting(None, _number)
    metrics_port: MetricsPorts = _setting(MetricsPorts(), metrics_ports)
    metrics_address: str = _setting("127.0.0.1", _text)
    alerts: bool | None = _setting(None, _flag)
    # No repr, as above.
    alert_urls: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata={"check": alert_settings.urls}, repr=False
    )
    alert_after_failures: int = _setting(1, alert_settings.failures)
    alert_lost: bool = _setting(default=True, check=_flag)
    alert_late_after: timedelta | None = _setting(None, _delay)
    alert_slow_after: timedelta | None = _setting(None, _delay)
    alert_silent_after: timedelta | None = _setting(None, _delay)
    alert_quarantined: bool = _setting(default=True, check=_flag)
    alert_paused: bool = _setting(default=True, check=_flag)
    alert_recovered: bool = _setting(default=True, check=_flag)
    alert_interval: timedelta = _setting(timedelta(minutes=5), _delay)
    alert_delay: timedelta = _setting(timedelta(seconds=10), _delay)
    alert_timeout: timedelta = _setting(timedelta(seconds=10), _duration)
    alert_retry_for: timedelta = _setting(timedelta(hours=1), _duration)
    flower_url: str | None = _setting(None, _web_url)
    alert_templates: str | None = _setting(None, _folder)
    ping_hosts: tuple[str, ...] | None = _setting(None, alert_settings.ping_hosts)
    traces: bool = _setting(default=False, check=_flag)
    sentry_monitors: tuple[str, ...] | None = _setting(None, _patterns)

    @property
    def alerts_enabled(self) -> bool:
        """Whether facts are recorded and evaluated."""
        return any(self.alert_urls.values()) if self.alerts is None else self.alerts

    @property
    def fact_limits(self) -> alert_settings.FactLimits | None:
        """The limits of late and slow runs, None without alerts."""
        if not self.alerts_enabled:
            return None
        return alert_settings.FactLimits(self.alert_late_after, self.alert_slow_after)

    @classmethod
    def read(
        cls, conf: Configuration, *, timezone: str, application: str | None = None
    ) -> "Settings":
        """Return the settings in ``conf``; ``timezone`` and ``application`` are their defaults.

        Raises ConfigurationError for an unknown ``dynbeat_*`` key, with a suggestion; for a key
        that Celery ignores because of its spelling; for a value that breaks the setting's rule.
        """
        known = {setting.name: setting.metadata["check"] for setting in fields(cls)}
        _reject_unknown(conf.keys(), known)
        _reject_unread(conf, known)
        values: dict[str, Any] = {"timezone": timezone, "application": application}
        for name, check in known.items():
            value = conf.get(PREFIX + name)
            if value is not None:
                values[name] = _checked(name, value, check)
        return cls(**values)


#: Values that can hold a password.
_SECRET = frozenset(setting.name for setting in fields(Settings) if not setting.repr)


def _checked(name: str, value: object, check: Callable[[object], Any]) -> Any:
    try:
        return check(value)
    except ValueError as error:
        shown = "..." if name in _SECRET else repr(value)
        msg = f"{PREFIX}{name} = {shown}: {error}"
        raise ConfigurationError(msg) from None


def _reject_unknown(keys: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for key in keys:
        # With namespace="CELERY" the key is CELERY_DYNBEAT_POLL_INTERVAL, for example.
        match = re.fullmatch(r"(?:[a-z0-9]+_)??dynbeat_(\w+)", str(key).lower())
        if match is None or match[1] in names:
            continue
        near = difflib.get_close_matches(match[1], names, n=1, cutoff=0.5)
        hint = f"did you mean {PREFIX}{near[0]}?" if near else f"known are: {', '.join(names)}"
        msg = f"unknown setting {key!r}: {hint}"
        raise ConfigurationError(msg)


def _reject_unread(conf: Configuration, known: Iterable[str]) -> None:
    """Raise for a key that Celery ignores silently, such as DYNBEAT_BATCH_SIZE.

    Celery reads ``dynbeat_batch_size``, and with namespace="CELERY" also CELERY_DYNBEAT_BATCH_SIZE.
    If one of these is set as well, the ignored key may be a variable of the user's own.
    """
    # An attribute of Celery's own configuration only. It ends with "_".
    namespace = str(getattr(conf, "prefix", None) or "")
    names = {(start + PREFIX + name).lower(): name for name in known for start in ("", namespace)}
    for key in conf.keys():  # noqa: SIM118 - the protocol has only keys()
        name = names.get(str(key).lower())
        if name is None or conf.get(PREFIX + name, _UNSET) is not _UNSET:
            continue
        # The same rule as match_case in celery.utils.text.
        read = namespace + PREFIX + name
        read = read.upper() if namespace.isupper() else read.lower()
        given = f"namespace={namespace.removesuffix('_')!r}" if namespace else "no namespace"
        msg = f"setting {key!r} is not read: with {given} Celery reads {read}; rename it"
        raise ConfigurationError(msg)
