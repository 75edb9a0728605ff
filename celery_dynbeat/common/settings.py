"""The ``dynbeat_*`` settings of the Celery configuration, checked and read once."""

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

from celery_dynbeat.common.errors import ConfigurationError, InvalidScheduleError
from celery_dynbeat.common.window import as_share

if TYPE_CHECKING:
    from celery_dynbeat.common.owner_limits import Cap, LimitsByOwner
    from celery_dynbeat.common.quiet_rule import QuietRule
    from celery_dynbeat.common.retry import Retry

#: Ended runs that ``alert_after_failures`` may count. A pass reads this many rows of a schedule.
MAX_FAILURES = 1_000
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S.*", re.DOTALL)


def failures(value: object) -> int:
    """Return a valid ``after_failures``; 0 means never. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_FAILURES:
        msg = f"must be a whole number from 0 to {MAX_FAILURES}; 0 means never"
        raise ValueError(msg)
    return value


def urls(value: object) -> tuple[str, ...]:
    """Return the Apprise URLs of a list, or of a function without arguments that returns a list.

    Raises ValueError.
    """
    many = _called(value)
    if isinstance(many, (str, bytes, Mapping)) or not isinstance(many, Iterable):
        msg = "must be a list of Apprise URLs"
        raise ValueError(msg)  # noqa: TRY004 - Settings.read expects ValueError
    listed = tuple(many)
    for number, url in enumerate(listed, start=1):
        if not isinstance(url, str) or not _URL.fullmatch(url):
            msg = f"item {number} must be an Apprise URL, such as 'mailto://...'"
            raise ValueError(msg)
    return listed


def _called(value: object) -> object:
    if not callable(value):
        return value
    try:
        return value()
    # A function of the operator: its error may show what it read.
    except Exception as error:  # noqa: BLE001
        msg = f"the function must return URLs, but raised {type(error).__name__}"
        raise ValueError(msg) from None


def ping_hosts(value: object) -> tuple[str, ...]:
    """Return the origins that an operator allows, in their canonical form. Raises ValueError."""
    rule = "must be a list of host names, such as ['hc-ping.com']"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(rule)  # noqa: TRY004
    return tuple(_origin(entry, rule) for entry in value)


def _origin(entry: object, rule: str) -> str:
    # A late import: most applications have no ping URLs.
    from celery_dynbeat.common.ping_urls import allowed_origin  # noqa: PLC0415

    # No entry is a pattern.
    if not isinstance(entry, str) or "*" in entry:
        raise ValueError(rule)
    try:
        return allowed_origin(entry)
    except ValueError as error:
        raise ValueError(f"{rule}: {entry!r} {error}") from None


# These names are in the tz database, but their meaning differs between machines.
_NOT_ZONES = {"localtime", "posixrules", "Factory"}
_MAX_LENGTH = 40


@cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones that mean the same on each machine."""
    names = frozenset(available_timezones() - _NOT_ZONES)
    if "UTC" not in names:
        # Not cached: without file descriptors, the search finds nothing and raises nothing.
        msg = "the tz database cannot be read"
        raise OSError(msg)
    return names


def tz_release() -> str | None:
    """Return the release of the tz database that this process uses, such as "2026b", or None.

    ``zoneinfo`` prefers the files of the system to the package tzdata.
    """
    for folder in map(Path, TZPATH):
        try:
            with (folder / "tzdata.zi").open(encoding="ascii") as file:
                match = re.match(r"# version (\d{4}[a-z]+)", file.readline())
        except (OSError, ValueError):
            match = None
        if match is not None:
            return match[1]
        if (folder / "Europe").is_dir():
            # Zones without a version.
            return None
    try:
        from tzdata import IANA_VERSION  # type: ignore[import-untyped] # noqa: PLC0415
    except ImportError:
        return None
    return str(IANA_VERSION)


def nearest_zone(name: str) -> str | None:
    """Return the zone whose name is most similar to ``name``, or None."""
    folded = {known.lower(): known for known in zone_names()}
    wanted = name.strip()[:_MAX_LENGTH].lower().replace(" ", "_")
    if wanted in folded:
        return folded[wanted]
    # Only places are suggested, because a zone with letters similar to "KST" or "UTC+9" can be
    # hours away.
    places = [known for known in folded if "/" in known and not known.startswith("etc/")]
    matches = difflib.get_close_matches(wanted, places, n=1)
    return folded[matches[0]] if matches else None


#: Overrides dynbeat_metrics_port for one process.
VARIABLE = "DYNBEAT_METRICS_PORT"
MAX_PORT = 65_535


def metrics_port(value: object) -> int:
    """Return the port of dynbeat_metrics_port; 0 is any free port. Raises ValueError."""
    is_port = isinstance(value, (int, str)) and not isinstance(value, bool)
    if not is_port or not re.fullmatch(r"\d{1,5}", str(value)) or int(str(value)) > MAX_PORT:
        msg = "must be a port (0: any free port)"
        raise ValueError(msg)
    return int(str(value))


def port_in_force(port: int | None) -> int | None:
    """Return the port in DYNBEAT_METRICS_PORT, else ``port``; None exports no metrics.

    Raises ConfigurationError for an invalid value of the variable.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return port
    try:
        return metrics_port(given) if given else None
    except ValueError as error:
        raise ConfigurationError(f"{VARIABLE} = {given!r}: {error}") from None


PREFIX = "dynbeat_"
_UNSET = object()
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


def _window(value: object) -> timedelta | str:
    return as_share(value) if isinstance(value, str) else _delay(value)


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


def _retry(value: object) -> "Retry":
    # A late import: most applications have no such setting.
    from celery_dynbeat.common.retry import Retry  # noqa: PLC0415

    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        msg = "must be Retry(max_retries=...), or a dict of its arguments"
        raise ValueError(msg)  # noqa: TRY004
    return Retry.from_json(value)


def _quiet_hours(value: object) -> "QuietRule":
    # A late import, as above.
    from celery_dynbeat.common.quiet_rule import QuietRule  # noqa: PLC0415

    return QuietRule.from_setting(value)


def _owner_limits(value: object) -> "LimitsByOwner":
    # A late import, as above.
    from celery_dynbeat.common.owner_limits import owner_limits  # noqa: PLC0415

    return owner_limits(value)


def _setting(default: Any, check: Callable[[object], Any]) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings with their defaults. In the configuration each name starts with ``dynbeat_``.

    A policy applies to schedules that do not set it. None means no limit, no expiry, no pause after
    failures or no retry. If ``timezone`` is not set, the time zone of the Celery application
    applies. In other settings, None means:

    - ``schema``: the schema of the connection.
    - ``create_tables``: tables are created on an embedded database only.
    - ``application``: the application has no name.
    - ``quiet_hours``: only the quiet hours of owners apply.
    - ``alerts``: on if there is a URL in ``alert_urls``.
    - ``ping_hosts``: no ping URLs are allowed.
    - ``expected_beats``, ``expected_workers``: a node that died and was not replaced is missing.
    """

    # Without a repr, because they contain passwords, and some tracebacks show the repr of local
    # variables.
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
    poll_interval: timedelta = _setting(timedelta(seconds=5), _duration)
    batch_size: int = _setting(500, _batch)
    dispatch_timeout: timedelta = _setting(timedelta(seconds=30), _duration)
    resend_after: timedelta = _setting(timedelta(hours=1), _duration)
    node_timeout: timedelta = _setting(timedelta(seconds=60), _duration)
    quiet_hours: "QuietRule | None" = _setting(None, _quiet_hours)
    catch_up: str = _setting("latest", _one_of(*CATCH_UPS))
    catch_up_window: timedelta | None = _setting(None, _duration)
    overlap: str = _setting("allow", _one_of(*OVERLAPS))
    max_run_time: timedelta = _setting(timedelta(hours=1), _duration)
    window: timedelta | str = _setting(timedelta(0), _window)
    expires_after: timedelta | None = _setting(None, _duration)
    on_lost: str = _setting("record", _one_of(*ON_LOST))
    pause_after_failures: int | None = _setting(None, _count)
    retry: "Retry | None" = _setting(None, _retry)
    history_retention: timedelta = _setting(timedelta(days=30), _duration)
    audit: bool = _setting(default=True, check=_flag)
    audit_retention: timedelta = _setting(timedelta(days=90), _duration)
    min_interval: timedelta = _setting(timedelta(seconds=1), _delay)
    max_schedules_per_owner: int | None = _setting(None, _count)
    max_running_per_owner: int | None = _setting(None, _count)
    allowed_tasks: tuple[str, ...] | None = _setting(None, _patterns)
    owner_limits: "LimitsByOwner | None" = _setting(None, _owner_limits)
    max_payload_bytes: int = _setting(65_536, _count)
    expected_beats: int | None = _setting(None, _number)
    expected_workers: int | None = _setting(None, _number)
    metrics_port: int | None = _setting(None, metrics_port)
    metrics_address: str = _setting("127.0.0.1", _text)
    alerts: bool | None = _setting(None, _flag)
    # No repr, as above.
    alert_urls: tuple[str, ...] = field(default=(), metadata={"check": urls}, repr=False)
    alert_after_failures: int = _setting(1, failures)
    alert_late_after: timedelta | None = _setting(None, _delay)
    alert_silent_after: timedelta | None = _setting(None, _delay)
    alert_interval: timedelta = _setting(timedelta(minutes=5), _delay)
    alert_timeout: timedelta = _setting(timedelta(seconds=10), _duration)
    flower_url: str | None = _setting(None, _web_url)
    ping_hosts: tuple[str, ...] | None = _setting(None, ping_hosts)

    @property
    def alerts_enabled(self) -> bool:
        """Whether beat opens and ends alerts."""
        return bool(self.alert_urls) if self.alerts is None else self.alerts

    @property
    def may_cap_runs(self) -> bool:
        """Whether an owner can have a limit on its runs."""
        if self.max_running_per_owner:
            return True
        return self.owner_limits is not None and self.owner_limits.may_cap_runs

    def knows_limits_of(self, owner: str) -> bool:
        """Return whether the limits of ``owner`` were read. For settings of ``for_pass``."""
        return self.owner_limits is None or self.owner_limits.knows(owner)

    def cap_of(self, owner: str) -> "Cap | None":
        """Return the limit on the runs of an owner, or None.

        Raises the error of a function of dynbeat_owner_limits that fails, except after
        ``for_pass``.
        """
        from celery_dynbeat.common.owner_limits import cap_of  # noqa: PLC0415

        return cap_of(owner, self.owner_limits, max_running=self.max_running_per_owner)

    def for_pass(self) -> "Settings":
        """Return the settings for many schedules, which look up the limits of an owner only once.

        A function of dynbeat_owner_limits that fails is logged, and raises no error.
        """
        limits = self.owner_limits
        of_pass = None if limits is None else limits.for_pass()
        return self if of_pass is limits else replace(self, owner_limits=of_pass)

    def min_interval_of(self, owner: str) -> timedelta:
        """Return the shortest distance between two fire times of a schedule of ``owner``.

        They never raise an error, because schedules must be planned even while the function of
        dynbeat_owner_limits fails.
        """
        if self.owner_limits is None or not owner:
            return self.min_interval
        limit = self.owner_limits.for_pass().value(owner, "min_interval")
        interval: timedelta = self.min_interval if limit is None else limit.value
        return interval

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


def check_task_allowed(settings: Settings, *, owner: str, task: str) -> None:
    """Raise InvalidScheduleError if a limit of ``owner`` has no pattern that matches ``task``.

    Patterns are case-sensitive. The application itself (owner ``""``) may run any task.
    """
    if not owner:
        return
    own = (
        None
        if settings.owner_limits is None
        else settings.owner_limits.value(owner, "allowed_tasks")
    )
    if own is not None:
        _check_matches(task, own.value, limit=own.named, owner=owner)
    elif settings.allowed_tasks is not None:
        _check_matches(task, settings.allowed_tasks, limit="dynbeat_allowed_tasks", owner=owner)


def _check_matches(task: str, patterns: Iterable[str], *, limit: str, owner: str) -> None:
    if any(fnmatchcase(task, pattern) for pattern in patterns):
        return
    msg = (
        f"task = {task!r}: {limit} = {list(patterns)} does not let owner {owner!r} run"
        " it; choose a task that a pattern matches, or add a pattern to the setting"
    )
    raise InvalidScheduleError(msg, field="task")
