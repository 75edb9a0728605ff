"""The ``dynbeat_*`` settings of the Celery configuration, checked and read once."""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

from celery_dynbeat.common import rules
from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.owner_limits import NO_OWNER_LIMITS, LimitsByOwner, owner_limits
from celery_dynbeat.common.ping_urls import allowed_origin
from celery_dynbeat.common.quiet_rule import QuietRule
from celery_dynbeat.common.retry import Retry

#: Ended runs that ``alert_after_failures`` may count. A pass reads this many rows of a schedule.
MAX_FAILURES = 1_000
_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) ?%", re.ASCII)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S.*", re.DOTALL)


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
    text = "must be a list of host names, such as ['hc-ping.com']"
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise ValueError(text)  # noqa: TRY004
    return tuple(_origin(entry, text) for entry in value)


def _origin(entry: object, text: str) -> str:
    # No entry is a pattern.
    if not isinstance(entry, str) or "*" in entry:
        raise ValueError(text)
    try:
        return allowed_origin(entry)
    except ValueError as error:
        raise ValueError(f"{text}: {entry!r} {error}") from None


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


#: Overrides dynbeat_metrics for one process.
VARIABLE = "DYNBEAT_METRICS"
MAX_PORT = 65_535
_ENDPOINT = re.compile(r"(?:(\[[^\s\[\]]+\]|[^\s:\[\]]+):)?(\d{1,5})")


class MetricsEndpoint(NamedTuple):
    """Where a beat exports its metrics. Port 0 is any free port."""

    port: int
    address: str = "127.0.0.1"


def metrics_endpoint(value: object) -> MetricsEndpoint:
    """Return the endpoint of a port, or of ``"address:port"``. Raises ValueError."""
    is_given = isinstance(value, (int, str)) and not isinstance(value, bool)
    match = _ENDPOINT.fullmatch(str(value)) if is_given else None
    if match is None or int(match[2]) > MAX_PORT:
        msg = (
            "must be a port (0: any free port), or an address with a port, such as '127.0.0.1:9808'"
        )
        raise ValueError(msg)
    port = int(match[2])
    return MetricsEndpoint(port, match[1].strip("[]")) if match[1] else MetricsEndpoint(port)


def metrics_in_force(endpoint: MetricsEndpoint | None) -> MetricsEndpoint | None:
    """Return the endpoint in DYNBEAT_METRICS, else ``endpoint``; None exports no metrics.

    A port alone keeps the address of ``endpoint``.

    Raises ConfigurationError for an invalid value of the variable.
    """
    given = os.environ.get(VARIABLE)
    if given is None:
        return endpoint
    try:
        found = metrics_endpoint(given) if given else None
    except ValueError as error:
        raise ConfigurationError(f"{VARIABLE} = {given!r}: {error}") from None
    if found is not None and endpoint is not None and given.isdigit():
        found = found._replace(address=endpoint.address)
    return found


PREFIX = "dynbeat_"
_UNSET = object()
NOTIFIERS = ("auto", "postgresql", "broker", "polling")
CATCH_UPS = ("latest", "all", "none")
OVERLAPS = ("allow", "skip", "buffer_one", "cancel_previous")
ON_LOST = ("record", "rerun")


class Configuration(Protocol):
    """The part of ``app.conf`` that this module needs."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of ``key``, or ``default``."""

    def keys(self) -> Iterable[str]:
        """Return the keys that have a default or a value."""


_text = rules.check(
    "must be a non-empty string", lambda value: isinstance(value, str) and value != ""
)
_flag = rules.check("must be True or False", lambda value: isinstance(value, bool))
_mapping = rules.check(
    "must be a dict of keyword arguments for sqlalchemy.create_engine",
    lambda value: isinstance(value, Mapping),
)
_count = rules.check(
    "must be a whole number of at least 1", lambda value: rules.is_whole(value, least=1)
)
_failures = rules.check(
    f"must be a whole number from 0 to {MAX_FAILURES}; 0 means never",
    lambda value: rules.is_whole(value, least=0, most=MAX_FAILURES),
)
_expected_nodes = rules.check(
    "must be a dict such as {'beat': 2, 'worker': 8}",
    lambda value: (
        isinstance(value, Mapping)
        and value.keys() <= {"beat", "worker"}
        and all(rules.is_whole(each, least=0) for each in value.values())
    ),
)
application_name = rules.check(
    f"must be a string of 1 to {rules.MAX_NAME_LENGTH} printable characters, without white space"
    " at its ends",
    lambda value: rules.is_name(value) and value.isprintable() and value == value.strip(),
)


def _matching(pattern: str, text: str) -> rules.Check:
    return rules.check(
        text,
        lambda value: isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) is not None,
    )


_schema = _matching(
    r"[A-Za-z_][\w$-]{0,62}",
    "must be the name of a schema: up to 63 letters, digits, and the characters _ $ -",
)
_table_prefix = _matching(
    r"dynbeat_|(?!dynbeat_)[a-z][a-z0-9_]{0,19}",
    "must be up to 20 lower-case letters, digits and underscores that begin with a letter, and not"
    " with 'dynbeat_'; such as 'billing_'",
)
_address = _matching(
    r"https?://[^\s@]+",
    "must be the address of Flower, such as 'https://flower.example.com', without a user",
)


def _web_url(value: object) -> str:
    return str(_address(value)).rstrip("/")


def _one_of(*choices: str) -> rules.Check:
    listed = ", ".join(repr(choice) for choice in choices)
    return rules.check(f"must be one of {listed}", lambda value: value in choices)


def _duration(value: object) -> timedelta:
    seconds = rules.seconds_of(value)
    if seconds is None or not seconds >= timedelta.resolution.total_seconds():
        msg = "must be a positive number of seconds or a positive timedelta"
        raise ValueError(msg)
    if seconds > rules.MAX_DURATION.total_seconds():
        days = rules.MAX_DURATION.days
        msg = f"must be at most {days} days (100 years): set less, or leave it unset"
        raise ValueError(msg)
    return timedelta(seconds=seconds)


def _delay(value: object) -> timedelta:
    """Return a duration, which may be zero."""
    return timedelta(0) if rules.seconds_of(value) == 0 else _duration(value)


def as_share(text: str) -> str:
    """Return a window that is a share of an interval in its shortest form. Raises ValueError."""
    match = _SHARE.fullmatch(text.strip())
    if match is None or not 0 < float(match[1]) <= 100:  # noqa: PLR2004 - percent
        msg = "must be a duration, or more than 0% and at most 100% of the interval, such as '50%'"
        raise ValueError(msg)
    return f"{float(match[1]):g}%"


def _window(value: object) -> timedelta | str:
    return as_share(value) if isinstance(value, str) else _delay(value)


def _zone(value: object) -> str:
    try:
        ZoneInfo(_text(value))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        nearest = nearest_zone(value) if isinstance(value, str) else None
        hint = f"; did you mean {nearest!r}?" if nearest else ""
        msg = f"must be a time zone of the tz database, such as 'Europe/Berlin'{hint}"
        raise ValueError(msg) from None
    return str(value)


def _retry(value: object) -> Retry:
    if isinstance(value, Retry):
        return value
    if not isinstance(value, Mapping):
        msg = "must be Retry(max_retries=...), or a dict of its arguments"
        raise ValueError(msg)  # noqa: TRY004
    return Retry.from_json(value)


def _setting(default: Any, check: rules.Check) -> Any:
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
    - ``alert_urls``: no alerts. With an empty tuple, alerts are stored, but only signals are sent.
    - ``ping_hosts``: no ping URLs are allowed.

    A kind of node that ``expected_nodes`` does not have misses a node that died and was not
    replaced.
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
    dispatch_timeout: timedelta = _setting(timedelta(seconds=30), _duration)
    resend_after: timedelta = _setting(timedelta(hours=1), _duration)
    node_timeout: timedelta = _setting(timedelta(seconds=60), _duration)
    quiet_hours: QuietRule | None = _setting(None, QuietRule.from_setting)
    catch_up: str = _setting("latest", _one_of(*CATCH_UPS))
    catch_up_window: timedelta | None = _setting(None, _duration)
    overlap: str = _setting("allow", _one_of(*OVERLAPS))
    max_run_time: timedelta = _setting(timedelta(hours=1), _duration)
    window: timedelta | str = _setting(timedelta(0), _window)
    expires_after: timedelta | None = _setting(None, _duration)
    on_lost: str = _setting("record", _one_of(*ON_LOST))
    pause_after_failures: int | None = _setting(None, _count)
    retry: Retry | None = _setting(None, _retry)
    history_retention: timedelta = _setting(timedelta(days=30), _duration)
    audit_retention: timedelta = _setting(timedelta(days=90), _delay)
    min_interval: timedelta = _setting(timedelta(seconds=1), _delay)
    owner_limits: LimitsByOwner = _setting(NO_OWNER_LIMITS, owner_limits)
    max_payload_bytes: int = _setting(65_536, _count)
    expected_nodes: Mapping[str, int] = field(
        default_factory=dict, metadata={"check": _expected_nodes}
    )
    metrics: MetricsEndpoint | None = _setting(None, metrics_endpoint)
    # No repr, as above.
    alert_urls: tuple[str, ...] | None = field(default=None, metadata={"check": urls}, repr=False)
    alert_after_failures: int = _setting(1, _failures)
    alert_late_after: timedelta | None = _setting(None, _delay)
    alert_silent_after: timedelta | None = _setting(None, _delay)
    flower_url: str | None = _setting(None, _web_url)
    ping_hosts: tuple[str, ...] | None = _setting(None, ping_hosts)

    @property
    def is_audited(self) -> bool:
        """Whether each edit is recorded."""
        return bool(self.audit_retention)

    @property
    def alerts_enabled(self) -> bool:
        """Whether beat opens and ends alerts."""
        return self.alert_urls is not None

    def for_pass(self) -> "Settings":
        """Return the settings for many schedules, which look up the limits of an owner only once.

        A function of dynbeat_owner_limits that fails is logged, and raises no error.
        """
        return replace(self, owner_limits=self.owner_limits.for_pass())

    def min_interval_of(self, owner: str) -> timedelta:
        """Return the shortest distance between two fire times of a schedule of ``owner``.

        It never raises an error, because schedules must be planned even while the function of
        dynbeat_owner_limits fails.
        """
        own = self.owner_limits.for_pass().of(owner).min_interval
        return self.min_interval if own is None else own

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


def _checked(name: str, value: object, check: rules.Check) -> Any:
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
    """Raise for a key that Celery ignores silently, such as DYNBEAT_DATABASE_URL.

    Celery reads ``dynbeat_database_url``, and with namespace="CELERY" also
    CELERY_DYNBEAT_DATABASE_URL. If one of these is set as well, the ignored key may be a variable
    of the user's own.
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
