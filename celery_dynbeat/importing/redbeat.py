"""The store of celery-redbeat in Redis: the members of a sorted set, and the hash of each.

Redis is only read. The set is read by ZSCAN, because beat changes the scores, and so the order,
while it runs.

``redbeat/decoder.py`` defines the formats. A recurrence rule is stored with a fixed offset in place
of its zone. An entry without a last run is due at once in RedBeat. RedBeat itself writes the time
of the creation as the last run.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from functools import cached_property, lru_cache, partial
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from kombu.utils.url import maybe_sanitize_url

from celery_dynbeat.api.edits import SourceProgress
from celery_dynbeat.common.errors import InvalidTriggerError
from celery_dynbeat.common.text import cut, shorten
from celery_dynbeat.importing import conversion
from celery_dynbeat.importing.conversion import EXPIRES, EXPIRY, CrontabFields, TriggerWithNotes
from celery_dynbeat.importing.foreign import (
    Converted,
    Ended,
    ForeignEntry,
    Inexpressible,
    Note,
    SourceError,
    with_conversion,
)
from celery_dynbeat.process.context import Context
from celery_dynbeat.triggers import Every, RRule

PAGE_SIZE = 500
DEFAULT_PREFIX = "redbeat:"
#: The scheme of RedBeat for a cluster. redis itself has none.
_CLUSTER_SCHEME = "redis-cluster"
_DEFAULT_NODE = {"host": "localhost", "port": 30001}
#: Options of RedBeat that are not options of the client.
_OWN_OPTIONS = frozenset(
    {
        *("retry_period", "cluster", "startup_nodes"),
        *("sentinels", "service_name", "sentinel_kwargs"),
    }
)
_SENTINEL_SCHEMES = ("redis-sentinel", "sentinel")
_MICROSECOND = timedelta(microseconds=1)


def _require_redis() -> None:
    """Raise SourceError if the package redis is not installed."""
    try:
        import redis  # noqa: F401, PLC0415
    except ImportError:
        raise SourceError("redis is not installed: install celery-dynbeat[redis]") from None


def _client_of(url: str, *, cluster: bool) -> Any:
    """Return the client for a URL. Raises SourceError for one that is not supported."""
    from redis import Redis, RedisCluster  # noqa: PLC0415 - an extra

    scheme, separator, rest = url.partition("://")
    if scheme in _SENTINEL_SCHEMES:
        raise SourceError(
            "the URL of a sentinel names no master: leave the URL out, and set redbeat_redis_url"
            " and redbeat_redis_options, with sentinels and service_name, as for RedBeat"
        )
    if scheme == _CLUSTER_SCHEME:
        cluster, url = True, f"redis{separator}{rest}"
    try:
        return (RedisCluster if cluster else Redis).from_url(url)
    except ValueError as error:
        # The URL is not shown, because it can contain a password.
        raise SourceError(
            "the URL of the source is not one that redis understands: write it like"
            " redis://host:6379/0, rediss://... or redis-cluster://host:6379"
        ) from error


def _own_client(app: Celery) -> Any:
    """Return the client of RedBeat's own settings. Raises SourceError without celery-redbeat."""
    try:
        from redbeat.schedulers import ensure_conf, get_redis  # noqa: PLC0415 - not an extra
    except ImportError:
        rule = "without a URL, celery-redbeat must be installed: give the URL of its Redis"
        raise SourceError(rule) from None
    settings = ensure_conf(app)
    options = dict(settings.redbeat_redis_options)
    if str(settings.redis_url).startswith(_CLUSTER_SCHEME) and not options.get("cluster"):
        return _client_of_nodes(options)
    return get_redis(app)


def _client_of_nodes(options: dict[str, Any]) -> Any:
    # RedBeat 2.4.2 gives the nodes to RedisCluster as dicts, which redis 4 and newer reject.
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415 - an extra

    node_class: Any = ClusterNode
    given = options.get("startup_nodes") or [_DEFAULT_NODE]
    try:
        nodes = [node_class(node["host"], int(node["port"])) for node in given]
    except (KeyError, TypeError, ValueError) as error:
        rule = "must be a list of {'host': ..., 'port': ...}"
        raise SourceError(f"redbeat_redis_options['startup_nodes'] {rule}") from error
    others = {key: value for key, value in options.items() if key not in _OWN_OPTIONS}
    return RedisCluster(startup_nodes=nodes, **others)


def _advice(error: Exception) -> str:
    """Return what to do about an error of Redis, "" if its text says it."""
    from redis.exceptions import MovedError, RedisClusterException  # noqa: PLC0415 - an extra

    if isinstance(error, MovedError):
        return "; this is a node of a Redis Cluster: write redis-cluster://..., or give --cluster"
    if isinstance(error, RedisClusterException):
        return "; a cluster has only the database 0, and a single server needs no --cluster"
    return ""


class RedBeatSource:
    """The entries below ``prefix``.

    ``url=None`` means the Redis that RedBeat's own settings of the application name, sentinels and
    clusters included; it needs celery-redbeat. ``cluster`` means that the URL belongs to a cluster.
    Raises SourceError, without the password of the URL.
    """

    package = "redbeat"

    def __init__(
        self, url: str | None, *, context: Context, prefix: str | None = None, cluster: bool = False
    ) -> None:
        _require_redis()
        self._url, self._app, self._cluster = url, context.app, cluster
        self._now = context.clock.now
        self.prefix = prefix or str(self._app.conf.get("redbeat_key_prefix", DEFAULT_PREFIX))

    def count(self) -> int:
        """Return the number of entries."""
        return int(self._call(lambda client: client.zcard(self._schedule_key)))

    def pages(self) -> Iterator[list[ForeignEntry]]:
        """Yield the schedules, each once. Entries without a definition are left out, as by beat."""
        seen: set[str | bytes] = set()
        cursor: int | None = None
        while cursor != 0:
            cursor, keys = self._scan(cursor or 0)
            new = [key for key in dict.fromkeys(keys) if key not in seen]
            seen.update(new)
            if new:
                yield self._entries(new)

    @property
    def _schedule_key(self) -> str:
        return f"{self.prefix}:schedule"

    def _scan(self, cursor: int) -> tuple[int, list[str | bytes]]:
        found, members = self._call(
            lambda client: client.zscan(self._schedule_key, cursor=cursor, count=PAGE_SIZE)
        )
        return int(found), [key for key, _score in members]

    def _entries(self, keys: Sequence[str | bytes]) -> list[ForeignEntry]:
        def read(client: Any) -> Any:
            with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hmget(key, "definition", "meta")
                return pipe.execute()

        rows = self._call(read)
        convert = partial(_entry, app_timezone=str(self._app.timezone), now=self._now())
        return [
            convert(_text(key).removeprefix(self.prefix), _text(definition), meta and _text(meta))
            for key, (definition, meta) in zip(keys, rows, strict=True)
            if definition is not None
        ]

    def _call(self, work: Any) -> Any:
        # An extra. A cluster's own errors are no RedisError.
        from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415

        try:
            return work(self._client)
        except (RedisError, RedisClusterException, UnicodeDecodeError) as error:
            raise SourceError(f"{self._shown}: {error}{_advice(error)}") from error

    @property
    def _shown(self) -> str:
        url = self._url or self._app.conf.get("redbeat_redis_url") or "RedBeat's Redis"
        return str(maybe_sanitize_url(url))

    @cached_property
    def _client(self) -> Any:
        if self._url is None:
            return _own_client(self._app)
        return _client_of(self._url, cluster=self._cluster)


def _text(value: Any) -> str:
    # RedBeat's own client decodes responses.
    # Bytes that are not UTF-8 become lone surrogates, which no schedule can have.
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)


def _entry(
    name: str, stored: str, progress: str | None, *, app_timezone: str, now: datetime
) -> ForeignEntry:
    """Return the entry of a hash. A crontab is in the zone of the application."""
    try:
        definition = _object("definition", stored)
        meta = _object("meta", progress) if progress else {}
    except Inexpressible as reason:
        return ForeignEntry(name=name, described="", row={"name": name}, refused=str(reason))
    name = str(definition.get("name") or name)
    entry = ForeignEntry(
        name=name,
        described=_described(definition.get("schedule")),
        row={**definition, **meta, "name": name},
    )
    return with_conversion(entry, lambda: _converted(definition, meta, app_timezone, now))


def _converted(
    definition: Mapping[str, Any], meta: Mapping[str, Any], app_timezone: str, now: datetime
) -> tuple[Converted, tuple[Note, ...]]:
    trigger, notes = _trigger(definition.get("schedule"), app_timezone=app_timezone)
    last = _instant(meta.get("last_run_at"))
    if isinstance(trigger, RRule) and trigger.next_after(last or now) is None:
        raise Ended("its rule has no later fire time")
    options, limits, more = _options(definition.get("options") or {}, now)
    payload = {
        "args": _plain(definition.get("args") or []),
        "kwargs": _plain(definition.get("kwargs") or {}),
        "options": options,
    }
    enabled = bool(definition.get("enabled", True))
    since = last if enabled else None
    count = meta.get("total_run_count") or 0
    converted = Converted(
        task=str(definition.get("task")),
        trigger=trigger,
        fields={**payload, **limits},
        enabled=enabled,
        progress=SourceProgress(after=since, last_run_at=since, anchor_at=since, run_count=count),
    )
    return converted, (*notes, *more)


def _options(given: Any, now: datetime) -> tuple[dict[str, Any], dict[str, Any], tuple[Note, ...]]:
    """Return the options, the limits that they mean for the schedule, and notes on these."""
    if not isinstance(given, dict):
        raise Inexpressible("options is not an object")
    options = {key: value for key, value in given.items() if value is not None}
    headers = options.get("headers")
    if isinstance(headers, dict):
        options["headers"] = {
            key: value for key, value in headers.items() if key != "periodic_task_name"
        }
    expires = options.pop("expires", None)
    if expires is None:
        return options, {}, ()
    if isinstance(expires, dict):
        end = _instant(expires)
        assert end is not None  # noqa: S101 - expires is given
        if end <= now:
            raise Ended(f"its messages have expired since {end}")
        return options, {"end_at": end - _MICROSECOND}, (EXPIRES,)
    return options, {"expires_after": expires}, (EXPIRY,)


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise Inexpressible(f"{field} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise Inexpressible(f"{field} is not an object")
    return value


def _plain(value: Any) -> Any:
    """Return the arguments with RedBeat's instants in the JSON of kombu, for the worker."""
    # JSON has no other containers. A test for Mapping takes longer than the rest.
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, dict):
        return value
    kind = value.get("__type__")
    if kind == "datetime" and "__value__" not in value:
        instant = _instant(value)
        assert instant is not None  # noqa: S101 - value is a mapping
        return {"__type__": "datetime", "__value__": instant.isoformat()}
    if kind in {"interval", "crontab", "weekday", "rrule"}:
        raise Inexpressible(f"an argument is a {kind}: no message can have one")
    return {key: _plain(each) for key, each in value.items()}


_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_NUMBERS = (
    *("bysetpos", "bymonth", "bymonthday", "byyearday", "byeaster", "byweekno", "byhour"),
    *("byminute", "bysecond"),
)
#: Characters of a rule that a report shows.
_MAX_SHOWN = 120
_FIXED_OFFSET = Note(
    "rrule",
    "RedBeat has stored the offset of dtstart in place of its zone: the rule ignores clock changes,"
    " as before",
)
_MINUTES_PER_HOUR = 60
_MAX_OFFSET_HOURS = 12


def _trigger(schedule: Any, *, app_timezone: str) -> TriggerWithNotes:
    """Return the trigger for the value of ``schedule`` in a definition. Raises Inexpressible."""
    kind = schedule.get("__type__") if isinstance(schedule, dict) else None
    try:
        match kind:
            case "interval":
                return _interval(schedule)
            case "crontab":
                return conversion.cron(_crontab(schedule), app_timezone)
            case "rrule":
                return _rrule(schedule)
            case _:
                raise Inexpressible(f"a schedule of the type {shorten(kind)} is not known")
    except (InvalidTriggerError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Inexpressible(f"{_described(schedule)}: {error}") from error


def _described(schedule: Any) -> str:
    """Return the schedule in the words of RedBeat."""
    if not isinstance(schedule, dict):
        return shorten(schedule)
    match schedule.get("__type__"):
        case "interval":
            relative = ", relative" if schedule.get("relative") else ""
            return f"every {schedule.get('every')} seconds{relative}"
        case "crontab":
            return f"crontab {_crontab(schedule)}"
        case "rrule":
            with suppress(ArithmeticError, LookupError, OSError, TypeError, ValueError):
                rule = cut(";".join(_parts(schedule)), _MAX_SHOWN)
                return f"rrule {rule} from {_start(schedule).isoformat()}"
    return shorten({key: value for key, value in schedule.items() if value is not None})


def _crontab(schedule: Mapping[str, Any]) -> CrontabFields:
    """Return the fields, of which each is text, a number or a list."""
    given = (_listed(schedule.get(name, "*")) for name in CrontabFields._fields)
    return CrontabFields(*(",".join(map(str, each)) for each in given))


def _instant(value: Any) -> datetime | None:
    """Return the instant in RedBeat's JSON of a datetime. None stays None. Raises Inexpressible."""
    if value is None:
        return None
    try:
        parts = {key: each for key, each in value.items() if key not in {"__type__", "timezone"}}
        zone = value.get("timezone", "UTC")
        # RedBeat writes the name of a zone, or an offset in seconds.
        known = ZoneInfo(zone) if isinstance(zone, str) else timezone(timedelta(seconds=zone))
        return datetime(**parts, tzinfo=known).astimezone(UTC)
    except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
        raise Inexpressible(f"{shorten(value)} is not an instant: {error}") from error


def _interval(schedule: Mapping[str, Any]) -> TriggerWithNotes:
    if schedule.get("relative"):
        raise Inexpressible(
            "an interval that is rounded to its unit (relative): create a crontab or an anchored"
            " interval in its place"
        )
    return _every(schedule["every"])


@lru_cache(maxsize=1024)
def _every(seconds: float) -> TriggerWithNotes:
    return TriggerWithNotes(Every(timedelta(seconds=seconds)), (conversion.DRIFT,))


def _rrule(schedule: Mapping[str, Any]) -> TriggerWithNotes:
    offset = int(schedule.get("dtstart_tz") or 0)
    zone, start = _zone(offset), _start(schedule)
    text = f"DTSTART;TZID={zone}:{start:%Y%m%dT%H%M%S}\nRRULE:{';'.join(_parts(schedule))}"
    notes = () if zone == "UTC" else (_FIXED_OFFSET,)
    return TriggerWithNotes(RRule(text), notes)


def _start(schedule: Mapping[str, Any]) -> datetime:
    zone = timezone(timedelta(minutes=int(schedule.get("dtstart_tz") or 0)))
    return datetime.fromtimestamp(schedule["dtstart"], tz=zone)


def _zone(offset: int) -> str:
    """Return the zone of the tz database with a fixed offset in minutes."""
    hours, minutes = divmod(offset, _MINUTES_PER_HOUR)
    if minutes or abs(hours) > _MAX_OFFSET_HOURS:
        rule = "only whole hours have a zone in the tz database; create an RRULE with its zone"
        raise Inexpressible(f"a rule with an offset of {offset} minutes: {rule}")
    # The signs of these names are reversed (POSIX).
    return f"Etc/GMT{-hours:+d}" if hours else "UTC"


def _parts(schedule: Mapping[str, Any]) -> Iterable[str]:
    for key, (part, convert) in _PARTS.items():
        values = _listed(schedule.get(key))
        if values and (key, values) != ("interval", [1]):
            yield f"{part}={','.join(map(convert, values))}"


def _utc(seconds: Any) -> str:
    return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y%m%dT%H%M%SZ}"


def _frequency(value: Any) -> str:
    return _FREQUENCIES[value]


def _weekday(value: Any) -> str:
    # RedBeat does not store the number of the weekday in the month, so it reads MO(+1) back as MO.
    return _WEEKDAYS[value["wkday"] if isinstance(value, Mapping) else value]


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


#: The keys of a rule in RedBeat, each with its part of an RRULE and the conversion of a value.
_PARTS: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "freq": ("FREQ", _frequency),
    "interval": ("INTERVAL", str),
    "count": ("COUNT", str),
    "until": ("UNTIL", _utc),
    "wkst": ("WKST", _weekday),
    "byweekday": ("BYDAY", _weekday),
    **{name: (name.upper(), str) for name in _NUMBERS},
}
