"""The fields of a schedule, and the functions that check them together.

Each field is one row of FIELDS, from which the surfaces derive. The API checks, compares and audits
the columns of FIELDS. ``dynbeat add``, ``update``, ``show``, ``apply`` and ``export``, the form and
the pages of Flower, and the docs show them. A new field also has a column in ``db.models``, and a
line in the types ``Fields`` and ``ScheduleInfo``.

Options of a single message (task_id, eta, group ...) are rejected, because each message needs a
different value. A schedule has its own ``expires_after`` in place of ``expires``. The bounds of
options come from AMQP 0-9-1, so that no option is stored that all brokers reject.

Each error names the argument, the value, the rule and the fix. Celery's classes are imported only
for a trigger that could be an instance of one.
"""

import difflib
import json
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias, TypedDict
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import BaseSchedule

# kombu has no public list of the aliases, such as "gzip".
from kombu.compression import _aliases, encoders
from kombu.serialization import registry

from celery_dynbeat import celery_schedules
from celery_dynbeat.api.checks import (
    BINDING,
    MAX_SECONDS,
    check_choice,
    check_flag,
    check_integer,
    check_json,
    check_name,
    check_number,
    copy_as,
    invalid,
    payload_too_large,
)
from celery_dynbeat.api.field_types import (
    Choice,
    Duration,
    FieldType,
    Instant,
    Integer,
    JsonValue,
    Name,
    RetryPolicy,
    Tags,
    Task,
    Text,
    Url,
    WindowValue,
)
from celery_dynbeat.broker import is_reserved
from celery_dynbeat.common import ping_urls
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.retry import Retry
from celery_dynbeat.common.settings import CATCH_UPS, ON_LOST, OVERLAPS, Settings
from celery_dynbeat.common.text import as_text, shorten
from celery_dynbeat.triggers import Every, Once, Trigger

MAX_PRIORITY = 255
#: Bytes of an AMQP short string: names of queues, keys of headers.
SHORT_STRING_BYTES = 255
#: An integer in a header is signed and has 64 bits.
INTEGER_BOUND = 2**63


class TaskObject(Protocol):
    """A Celery task, as ``@app.task`` creates it."""

    @property
    def name(self) -> str:
        """The name under which workers register the task."""

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task."""


class CelerySchedule(Protocol):
    """One of Celery's own schedules: ``crontab``, ``schedule``, ``solar``."""

    def remaining_estimate(self, last_run_at: Any, /) -> Any:
        """Return the time until the next run."""

    def is_due(self, last_run_at: Any, /) -> Any:
        """Return whether a run is due."""


TaskLike: TypeAlias = str | TaskObject
TriggerLike: TypeAlias = Trigger | str | timedelta | datetime | CelerySchedule

_TRIGGERS = (
    "must be a trigger (Cron, Every, Once ...), a string ('0 9 * * mon-fri', 'PT5M', '@daily', or"
    " the lines of an RRULE), a timedelta, an aware datetime, or Celery's crontab, schedule or"
    " solar"
)


def trigger_of(given: object, *, app: Celery, timezone: str | None = None) -> Trigger:
    """Return the trigger for ``given``.

    Celery's ``crontab`` follows the zone of the application that it names, or else the zone of
    ``app``. If this zone is ``timezone``, the default zone of triggers, the resulting trigger does
    not name a zone. Raises InvalidArgumentError with field ``"trigger"`` for an object of another
    type, and InvalidTriggerError for a string or value that is not a valid trigger.
    """
    if isinstance(given, Trigger):
        return given
    given = as_text(given)
    if isinstance(given, str):
        return Trigger.from_text(given)
    if isinstance(given, timedelta):
        return Every(given)
    if isinstance(given, datetime):
        return Once(given)
    return _trigger_of_celery(given, app=app, timezone=timezone)


def _trigger_of_celery(given: object, *, app: Celery, timezone: str | None) -> Trigger:
    if isinstance(given, BaseSchedule):
        trigger = celery_schedules.trigger_of(given, timezone=str(app.timezone), field="trigger")
        return celery_schedules.without_zone(trigger, given, timezone)
    rule = _TRIGGERS
    if isinstance(given, Mapping):
        rule += "; to read the output of to_json() call Trigger.from_json()"
    elif isinstance(given, int | float) and not isinstance(given, bool):
        rule += "; for a number of seconds write Every(seconds)"
    raise invalid("trigger", given, rule, "type")


@dataclass(frozen=True)
class Field:
    """A field of a schedule.

    - ``label`` is its name in a form, by default from ``name``. ``help`` is a sentence.
    - ``default`` is the value of a schedule that does not set the field. A field whose default is
      None accepts None, and a policy then follows the setting of the same name, if there is one.
      ``unset`` says what None means without a setting.
    - ``group`` is the part of a page that has the field.
    - With ``moves_fire_time``, a new value plans the next fire time again. With ``moves_offset``,
      it sets the offset of the next run.
    - With ``in_options``, the field is an entry of the column ``options``.
    """

    name: str
    type: FieldType
    help: str
    label: str = ""
    group: Literal["call", "about", "limit", "policy", "report"] = "policy"
    default: Any = None
    unset: str = "none"
    is_required: bool = False
    in_options: bool = False
    in_form: bool = True
    moves_fire_time: bool = False
    moves_offset: bool = False

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name.replace("_", " ").capitalize())

    @property
    def is_optional_column(self) -> bool:
        """Whether the field is a column that a new schedule need not set."""
        return not (self.is_required or self.in_options)

    @property
    def setting(self) -> str | None:
        """The setting that applies to a schedule without a value, or None."""
        return f"dynbeat_{self.name}" if self.name in Settings.__dataclass_fields__ else None

    def check(self, given: Any) -> Any:
        """Return the stored form of a given value. Raises InvalidArgumentError."""
        if given is None and self.default is None and not self.is_required:
            return None
        if self.in_options:
            check_option(self.name, given)
            return given
        return self.type.check(self.name, given)

    def value_in(self, info: Any) -> Any:
        """Return the value of a ScheduleInfo."""
        if not self.in_options:
            return getattr(info, self.name)
        # Manual SQL can write any JSON.
        return info.options.get(self.name) if isinstance(info.options, Mapping) else None

    def parse(self, text: str) -> Any:
        """Return the given form of a text; the default for an empty text. Raises ValueError."""
        return self.type.parse(text) if text.strip() or self.is_required else copy(self.default)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the text of a value, which ``parse`` reads back."""
        is_default = value is None and self.default is None
        return "" if is_default else self.type.format(value, zone)

    def from_json(self, value: Any) -> Any:
        """Return the given form of the JSON in a file. Raises InvalidArgumentError."""
        return None if value is None else self.type.from_json(self.name, value)

    def to_json(self, value: Any) -> Any:
        """Return the JSON of a value for a file."""
        return None if value is None else self.type.to_json(value)

    @property
    def option(self) -> str:
        """The option of the command line."""
        return "--tag" if isinstance(self.type, Tags) else f"--{self.name.replace('_', '-')}"

    def unset_text(self, settings: Settings) -> str:
        """Return what applies to a schedule without a value."""
        value = getattr(settings, self.name, None)
        return self.type.format(value, ZoneInfo("UTC")) if value else self.unset


#: By name, in the order in which the surfaces show them.
FIELDS: Mapping[str, Field] = {
    field.name: field
    for field in (
        Field("task", Task(), "The name of the task.", group="call", is_required=True),
        Field(
            "args",
            JsonValue(list),
            "Positional arguments of the task.",
            group="call",
            default=[],
            label="Arguments",
        ),
        Field(
            "kwargs",
            JsonValue(dict),
            "Keyword arguments of the task.",
            group="call",
            default={},
            label="Keyword arguments",
        ),
        Field("queue", Name(), "The queue of the messages.", group="call", in_options=True),
        Field(
            "priority",
            Integer(0, MAX_PRIORITY),
            "The priority of the messages.",
            group="call",
            in_options=True,
        ),
        Field(
            "options",
            JsonValue(dict),
            "Other options of apply_async.",
            group="call",
            default={},
            in_form=False,
        ),
        Field(
            "start_at",
            Instant(),
            "The time before which the schedule does not fire.",
            group="limit",
            moves_fire_time=True,
            # An interval counts from start_at.
            moves_offset=True,
        ),
        Field(
            "end_at",
            Instant(),
            "The time after which the schedule does not fire.",
            group="limit",
            moves_fire_time=True,
        ),
        Field(
            "max_runs",
            Integer(1),
            "The number of runs after which the schedule is finished.",
            group="limit",
            moves_fire_time=True,
        ),
        Field("catch_up", Choice(CATCH_UPS), "Which missed fire times to send."),
        Field(
            "catch_up_window",
            Duration(1, "a shorter window skips runs that are on time"),
            "The age above which missed fire times are not sent.",
            unset="no limit",
            label="Catch-up window",
        ),
        Field("overlap", Choice(OVERLAPS), "What to do if the previous run is unfinished."),
        Field(
            "max_run_time",
            Duration(),
            "The time after which a running run no longer counts as an overlap.",
        ),
        Field(
            "window",
            WindowValue(),
            "The span after a fire time in which the schedule has its offset, such as 10m, or"
            " 50% (of the interval).",
            moves_offset=True,
        ),
        Field(
            "expires_after",
            Duration(),
            "The time after which a run that has not started expires.",
            unset="never",
        ),
        Field(
            "finish_within",
            Duration(),
            "The time from the fire time after which an unfinished run is an alert.",
            unset="no limit",
        ),
        Field("on_lost", Choice(ON_LOST), "What to do if the worker of a run dies."),
        Field(
            "pause_after_failures",
            Integer(),
            "Pause the schedule after this many failed runs in a row. 0 means never.",
            unset="never",
        ),
        Field(
            "retry",
            RetryPolicy(),
            "How to retry a failed run, such as 3 or 'max_retries=3, backoff=5m, factor=2'. 0 means"
            " never.",
            unset="never",
        ),
        Field("description", Text(), "A description for people.", group="about", default=""),
        Field(
            "tags", Tags(), "A tag by which lists and commands filter.", group="about", default=[]
        ),
        Field(
            "ping_url",
            Url(),
            "The URL to which workers report each run.",
            group="report",
            in_form=False,
            label="Ping URL",
        ),
    )
}
#: The values of a schedule that sets only what is required.
DEFAULTS = {name: field.default for name, field in FIELDS.items() if field.is_optional_column}
#: The columns that are sent in the message. dynbeat_max_payload_bytes limits their size.
PAYLOAD = tuple(name for name, field in FIELDS.items() if isinstance(field.type, JsonValue))


#: A constant: json.dumps makes an encoder for each call with other options than its defaults.
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_NO_COLUMNS: Mapping[str, Any] = {}


class Fields(TypedDict, total=False):
    """The optional fields of a schedule.

    - ``queue`` and ``priority`` are shortcuts for the entries of ``options``; None removes the
      entry.
    - Instants are aware datetimes. Durations are timedeltas or numbers of seconds.
    - A policy (``catch_up`` to ``retry``) that is None follows the setting of the same name.
      ``window=0`` means no window, ``pause_after_failures=0`` never pauses, and
      ``retry=Retry(max_retries=0)`` never retries. ``retry`` may be a dict of the arguments of
      Retry.
    - ``window`` is a duration, or a share of the interval such as ``"50%"``.
    - ``finish_within`` counts from the fire time: a run that has not ended by then opens an alert.
    - ``ping_url`` is the URL to which a worker reports each run. dynbeat_ping_hosts must allow its
      host.
    """

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    queue: str | None
    priority: int | None
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    catch_up: str | None
    catch_up_window: timedelta | float | None
    expires_after: timedelta | float | None
    finish_within: timedelta | float | None
    window: timedelta | float | str | None
    overlap: str | None
    max_run_time: timedelta | float | None
    on_lost: str | None
    pause_after_failures: int | None
    retry: Retry | Mapping[str, Any] | None
    description: str
    tags: Sequence[str]
    ping_url: str | None


class NewFields(Fields, total=False):
    """The optional fields of a new schedule. With ``enabled=False``, it is created paused."""

    enabled: bool


class Changes(Fields, total=False):
    """The fields that an update can change."""

    task: TaskLike
    trigger: TriggerLike


def to_columns(
    given: Mapping[str, Any], *, limit: int, current: Mapping[str, Any] = _NO_COLUMNS
) -> dict[str, Any]:
    """Return the columns for the ``given`` fields.

    ``limit`` is the size in bytes of args, kwargs and options together, as JSON. Those that are
    not given count with their size in ``current``. If none of them is given, there is no size
    check. Raises InvalidArgumentError.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        field = FIELDS.get(name)
        if field is None or field.in_options:
            raise invalid(str(name), value, _unknown_field(str(name)), "unknown", name=name)
        values[name] = field.check(value)
        if name in PAYLOAD:
            values[name] = check_json(name, values[name], limit=limit)
        if name == "options":
            check_options(values[name])
    check_span(start_at=values.get("start_at"), end_at=values.get("end_at"))
    _check_size(values, current, limit)
    return values


def require_trigger(given: Mapping[str, object]) -> None:
    """Raise InvalidArgumentError for a name of another library in place of ``trigger``."""
    for field in {"crontab", "interval", "solar", "clocked", "schedule"} & given.keys():
        raise invalid(field, given[field], _unknown_field(field), "unknown", name=field)


def _unknown_field(field: str) -> str:
    known = sorted([*FIELDS, "trigger"])
    near = difflib.get_close_matches(field[:40], known, n=1, cutoff=0.6)
    hint = _HINTS.get(field) or (f"did you mean {near[0]}?" if near else None)
    if hint is None and field in _OPTION_CHECKS:
        hint = f"it is an option: options={{{field!r}: ...}}"
    return f"there is no such field; {hint or 'the known fields are ' + ', '.join(known)}"


def merge_options(current: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with ``queue`` and ``priority`` moved into its ``options``.

    If ``given`` does not contain ``options``, the other entries of the ``current`` options are
    kept.
    """
    short = {key: given[key] for key in given if key in FIELDS and FIELDS[key].in_options}
    merged = {key: value for key, value in given.items() if key not in short}
    if short or "options" in given:
        base = given.get("options", current)
        if not isinstance(base, Mapping):
            raise invalid("options", base, "must be a mapping", "type")
        for key, value in short.items():
            FIELDS[key].check(value)
        entries = copy_as(dict, "options", base) | short
        # queue=None and priority=None remove the entry.
        merged["options"] = {
            key: entries[key] for key in entries if short.get(key, entries) is not None
        }
    return merged


def check_span(*, start_at: datetime | None, end_at: datetime | None) -> None:
    """Raise InvalidArgumentError if ``end_at`` is before ``start_at``."""
    if start_at is not None and end_at is not None and end_at < start_at:
        raise invalid("end_at", end_at, f"must not be before start_at = {start_at}", "order")


def _check_size(values: Mapping[str, Any], current: Mapping[str, Any], limit: int) -> None:
    given = [key for key in PAYLOAD if key in values]
    if not given:
        return
    merged = {**current, **values}
    payload = [merged[key] for key in PAYLOAD if key in merged]
    size = len(_ENCODER.encode(payload).encode())
    if size > limit:
        raise payload_too_large(given[0], values[given[0]], size, limit)


#: Names from other libraries, and fields that another call accepts.
_HINTS = {
    "timezone": "it belongs to the trigger: Cron(..., timezone=...), or call set_timezone()",
    "enabled": "create() accepts it; for an existing schedule call pause() or resume()",
    "paused_reason": "call pause(reason=...)",
    "paused_until": "call pause(until=...)",
    "expires": (
        "use end_at for the instant after which the schedule stops (django-celery-beat calls it"
        " expires), or expires_after for how long one run may wait"
    ),
    **dict.fromkeys(
        ("crontab", "interval", "solar", "clocked"),
        "use trigger: a string such as '0 9 * * mon-fri' or 'PT5M', Cron(...), Every(...),"
        " Solar(...), Once(instant), or one of Celery's schedules",
    ),
    "eta": "use the trigger Once(instant), or start_at= for the first fire time of another trigger",
    "countdown": "use the trigger Once.after(delay), or options={'countdown': seconds}",
    "schedule": "use trigger",
    "name": "rename() changes a name",
    **BINDING,
}


def check_ping_url(settings: Settings, values: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if the settings do not allow a new ping URL in ``values``."""
    url = values.get("ping_url")
    if url is None:
        return
    if settings.ping_hosts is None:
        msg = "ping_url: no host is allowed; list the allowed ones in dynbeat_ping_hosts"
        raise InvalidArgumentError(msg, field="ping_url")
    try:
        ping_urls.parse_ping_url(url, allowed=settings.ping_hosts)
    except ValueError as error:
        raise InvalidArgumentError(f"ping_url: {error}", field="ping_url") from None


def check_options(options: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError for an unknown option, or one that no broker accepts."""
    for key, option in options.items():
        checker = _OPTION_CHECKS.get(key)
        field = f"options[{shorten(key)}]"
        if checker is None:
            raise invalid(field, option, _unknown_option(key), "unknown", name=key)
        checker(field, option)


def check_option(key: str, option: Any) -> None:
    """Raise InvalidArgumentError for an invalid option that was given as its own field."""
    _OPTION_CHECKS[key](key, option)


def refused_content_type(app: Celery, serializer: str) -> str | None:
    """Return the content type of ``serializer`` if ``accept_content`` of the app refuses it."""
    content_type: str | None = registry.name_to_type.get(serializer)
    accepted = app.conf.accept_content
    if content_type is None or accepted is None:
        return None
    # A name that only the workers register is unknown here.
    types = {registry.name_to_type.get(each, each) for each in accepted}
    return None if content_type in types else content_type


def _unknown_option(key: str) -> str:
    hint = _OPTION_HINTS.get(key)
    if hint is not None:
        return f"it belongs to one message, not to a schedule; {hint}"
    near = difflib.get_close_matches(key[:40], _OPTION_CHECKS, n=1)
    known = f"the known options are {', '.join(sorted(_OPTION_CHECKS))}"
    return f"a schedule has no such option; {f'did you mean {near[0]}?' if near else known}"


def _check_short_string(field: str, value: Any) -> None:
    if len(check_name(field, value).encode()) > SHORT_STRING_BYTES:
        rule = f"must be at most {SHORT_STRING_BYTES} bytes long"
        raise invalid(field, value, rule, "too_large", maximum=SHORT_STRING_BYTES)


def _check_priority(field: str, value: Any) -> None:
    try:
        check_integer(field, value, minimum=0, maximum=MAX_PRIORITY)
    except InvalidArgumentError as error:
        hint = "RabbitMQ accepts 0 to x-max-priority of the queue, Redis 0 to 9"
        raise error.saying(f"{error} ({hint})") from None


def _check_serializer(field: str, value: Any) -> None:
    check_choice(field, value, *sorted(registry._encoders))  # noqa: SLF001 - no public list exists


def _check_compression(field: str, value: Any) -> None:
    check_choice(field, value, *sorted([*encoders(), *_aliases]))


def _check_delivery_mode(field: str, value: Any) -> None:
    check_choice(field, value, 1, 2, "transient", "persistent")


def _check_headers(field: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise invalid(field, value, "must be a mapping", "type")
    for key in value:
        _check_short_string(field, key)
        if is_reserved(key):
            rule = (
                "is a header that Celery or dynbeat sets, and that decides which task is executed;"
                f" choose another name, such as {'my_' + key!r}"
            )
            raise invalid(field, key, rule)
    _check_integers(field, value)


def _check_integers(field: str, value: Any) -> None:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            _check_integers(field, each)
    elif isinstance(value, int) and not -INTEGER_BOUND <= value < INTEGER_BOUND:
        raise invalid(field, value, "an integer in headers must fit into 64 bits")


_CANVAS_HINT = "write a task that starts the other tasks, and schedule that task"
#: What to use instead of an option that belongs to a single message.
_OPTION_HINTS = {
    "expires": "use expires_after= of the schedule, in seconds or a timedelta",
    "eta": "use the trigger Once(instant), or start_at= for the first fire time of another trigger",
    "task_id": "each run has its own id, which run_now() and runs() return",
    **dict.fromkeys(("link", "link_error", "chord", "chain", "group", "group_id"), _CANVAS_HINT),
    **dict.fromkeys(
        ("retry", "retry_policy"), "beat itself resends messages that no broker accepted"
    ),
}
_check_time_limit = partial(check_number, minimum=0.001, maximum=MAX_SECONDS)
_OPTION_CHECKS: Mapping[str, Callable[[str, Any], object]] = {
    "queue": _check_short_string,
    "exchange": _check_short_string,
    "routing_key": _check_short_string,
    "priority": _check_priority,
    "serializer": _check_serializer,
    "compression": _check_compression,
    "delivery_mode": _check_delivery_mode,
    "countdown": partial(check_number, minimum=0, maximum=MAX_SECONDS),
    "time_limit": _check_time_limit,
    "soft_time_limit": _check_time_limit,
    "ignore_result": check_flag,
    "shadow": check_name,
    "headers": _check_headers,
}
