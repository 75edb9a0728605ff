"""The types of the fields of a schedule.

Each converts a value between these forms:

given    what create() accepts, such as a timedelta, or a number of seconds
stored   the value of the column: 60.0
value    the attribute of ScheduleInfo: timedelta(minutes=1)
text     what a person types in a shell or in a form: 1m
JSON     what a file of ``dynbeat apply`` contains: 60.0

The functions at the end parse and format durations, instants and retry policies as people type
them. Each of their errors is a ValueError with the value and the rule.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from celery.app.task import Task as CeleryTask
from celery.canvas import Signature

from celery_dynbeat.api.checks import (
    MAX_SECONDS,
    check_instant,
    check_integer,
    check_name,
    check_one_of,
    check_text,
    copy_as,
    invalid,
)
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.ping_urls import masked
from celery_dynbeat.common.retry import Retry, stored_retry
from celery_dynbeat.common.settings import as_share
from celery_dynbeat.common.text import as_text, escape, load_json, shorten
from celery_dynbeat.triggers.iso8601 import parse_duration as parse_iso_duration
from celery_dynbeat.triggers.iso8601 import short_duration

TAG_LENGTH = 64
MAX_TAGS = 32
_WHOLE_NUMBER = re.compile(r"\d{1,100}", re.ASCII)
#: JSON up to this length is written on one line. So is longer JSON than _PAGE: indentation could
#: multiply its length, and with it the size of the form.
_LINE, _PAGE = 72, 8_000


@dataclass(frozen=True, slots=True)
class TypedInstant:
    """An instant as it was typed: with an offset, without an offset, or relative to now.

    A time of day is the last one before now.
    """

    value: datetime | timedelta | time

    def resolve(self, *, now: Callable[[], datetime], zone: ZoneInfo) -> datetime:
        """Return the aware instant; a time without an offset is on the clock of ``zone``."""
        if isinstance(self.value, timedelta):
            return (now() + self.value).replace(microsecond=0)
        if isinstance(self.value, time):
            present = now().astimezone(zone)
            today = datetime.combine(present.date(), self.value, zone)
            return today if today <= present else today - timedelta(days=1)
        return self.value if self.value.tzinfo else self.value.replace(tzinfo=zone)


class FieldType:
    """The type of a field. ``metavar`` is its name in the help of commands."""

    metavar = "TEXT"
    _values = "a string"

    @property
    def values(self) -> str:
        """The given values, as the docs name them."""
        return self._values

    def check(self, field: str, given: Any) -> Any:
        """Return the stored form of a given value. Raises InvalidArgumentError."""
        raise NotImplementedError

    def parse(self, text: str) -> Any:
        """Return the given form of a text. Raises ValueError."""
        return text.strip()

    def value_of(self, stored: Any) -> Any:
        """Return the value of a stored one, which SQL may have written."""
        return stored

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return a text that ``parse`` reads back; instants are on the clock of ``zone``."""
        del zone
        return str(value)

    def from_json(self, field: str, value: Any) -> Any:
        """Return the given form of the JSON in a file. Raises InvalidArgumentError."""
        del field
        return value

    def to_json(self, value: Any) -> Any:
        """Return the JSON of a value for a file."""
        return value

    def masked(self, value: Any) -> Any:
        """Return a value, or its JSON, without its secrets."""
        return value

    def shown(self, value: Any) -> Any:
        """Return what pages and commands show for a value."""
        return self.masked(value)


class Text(FieldType):
    """A text of at most 1,024 characters."""

    def check(self, field: str, given: Any) -> str:
        """Return the text."""
        return check_text(field, given)

    def parse(self, text: str) -> str:
        """Return the text as it is."""
        return text


class Name(FieldType):
    """A name without white space at its ends."""

    def check(self, field: str, given: Any) -> str:
        """Return the name."""
        return check_name(field, given)


class Task(FieldType):
    """The name of a task, or a Celery task."""

    metavar = "TASK"
    _values = "a name, or a Celery task"

    def check(self, field: str, given: Any) -> str:
        """Return the name of a task that is given as its name or as a Celery task."""
        return task_name(field, given)


class Url(FieldType):
    """A URL that can contain a token. ``check_ping_url`` checks it against the settings."""

    metavar = "URL"
    _values = "a URL"

    def check(self, field: str, given: Any) -> str:
        """Return the URL. No error shows it."""
        if isinstance(given, str):
            return given
        msg = f"{field} is of type {type(given).__name__}: must be a URL, or None"
        raise InvalidArgumentError(msg, field=field)

    def masked(self, value: Any) -> Any:
        """Return the host."""
        return None if value is None else masked(value)


@dataclass(frozen=True)
class Integer(FieldType):
    """A whole number within bounds."""

    metavar = "NUMBER"
    _values = "a number"
    minimum: int = 0
    maximum: int = 2**31 - 1

    def check(self, field: str, given: Any) -> int:
        """Return the number."""
        return check_integer(field, given, minimum=self.minimum, maximum=self.maximum)

    def parse(self, text: str) -> int:
        """Return the number."""
        if not _WHOLE_NUMBER.fullmatch(text.strip()):
            raise ValueError(f"{shorten(text)} is not a whole number")
        return int(text)


@dataclass(frozen=True)
class Duration(FieldType):
    """A duration above zero. ``least`` is the smallest one in seconds, and ``why`` its reason."""

    metavar = "DURATION"
    _values = "a duration"
    allow_zero = False
    least: int = 0
    why: str = ""

    def check(self, field: str, given: Any) -> Any:
        """Return the seconds."""
        seconds = given.total_seconds() if isinstance(given, timedelta) else given
        is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
        # Rounded to microseconds, so that a caller reads exactly the stored duration.
        is_in_range = is_number and 0 <= seconds < MAX_SECONDS
        duration = timedelta(seconds=seconds) if is_in_range else None
        if duration is None or not (duration or self.allow_zero):
            least = "0 or more" if self.allow_zero else "more than 0"
            rule = f"must be a timedelta or a number of seconds, {least} and below"
            raise invalid(field, given, f"{rule} {MAX_SECONDS:,.0f}", "type")
        if duration.total_seconds() < self.least:
            raise invalid(field, given, f"must be at least {self.least} second: {self.why}")
        return duration.total_seconds()

    def value_of(self, stored: Any) -> Any:
        """Return the duration."""
        return None if stored is None else timedelta(seconds=stored)

    def parse(self, text: str) -> Any:
        """Return the duration."""
        return parse_duration(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``1d``, ``5m`` or ``1.5s``."""
        del zone
        return format_duration(value)

    def to_json(self, value: Any) -> Any:
        """Return the seconds."""
        return value.total_seconds()


class WindowValue(Duration):
    """A duration, which can be zero, or a share of the interval such as ``"50%"``."""

    metavar = "WINDOW"
    _values = 'a duration, a share such as `"50%"`, or 0'
    allow_zero = True

    def check(self, field: str, given: Any) -> Any:
        """Return the seconds, or the share."""
        if not isinstance(given, str):
            return super().check(field, given)
        try:
            return as_share(given)
        except ValueError as error:
            raise invalid(field, given, str(error), "type") from None

    def value_of(self, stored: Any) -> Any:
        """Return the duration, or the share."""
        return stored if isinstance(stored, str) else super().value_of(stored)

    def parse(self, text: str) -> timedelta | str:
        """Return the duration, or the share."""
        return parse_window(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``5m`` or ``50%``."""
        return value if isinstance(value, str) else super().format(value, zone)

    def to_json(self, value: Any) -> Any:
        """Return the seconds, or the share."""
        return value if isinstance(value, str) else super().to_json(value)


class Instant(FieldType):
    """An instant. ``parse`` returns a TypedInstant, which a zone and a clock resolve."""

    metavar = "TIME"
    _values = "an aware datetime"

    def check(self, field: str, given: Any) -> datetime | None:
        """Return the instant in UTC."""
        return check_instant(field, given)

    def parse(self, text: str) -> TypedInstant:
        """Return the instant as it was typed."""
        return parse_instant(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the time with its offset."""
        return str(value.astimezone(zone).isoformat())

    def from_json(self, field: str, value: Any) -> datetime:
        """Return the instant of ISO 8601 with an offset, which YAML may have read already."""
        rule = "must be an instant with its offset, such as '2026-11-21T09:00:00Z'"
        try:
            instant = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            instant = None
        if not isinstance(instant, datetime) or instant.tzinfo is None:
            raise InvalidArgumentError(f"{field} = {shorten(value)}: {rule}", field=field)
        return instant

    def to_json(self, value: Any) -> Any:
        """Return ISO 8601 with an offset."""
        return value.isoformat().replace("+00:00", "Z")


@dataclass(frozen=True)
class Choice(FieldType):
    """One of several words."""

    choices: Sequence[str] = ()

    @property
    def values(self) -> str:
        """The words."""
        return ", ".join(f'`"{choice}"`' for choice in self.choices)

    def check(self, field: str, given: Any) -> Any:
        """Return the word."""
        return check_one_of(field, given, *self.choices)


class RetryPolicy(FieldType):
    """A retry policy, or a dict of the arguments of Retry."""

    metavar = "RETRY"
    _values = "`Retry(...)`, or a dict of its arguments"

    def check(self, field: str, given: Any) -> Any:
        """Return the dict of the policy."""
        if isinstance(given, Retry):
            return given.to_json()
        if not isinstance(given, Mapping):
            rule = "must be Retry(max_retries=...), or a dict of its arguments"
            raise invalid(field, given, rule)
        return Retry.from_json(copy_as(dict, field, given)).to_json()

    def value_of(self, stored: Any) -> Retry | None:
        """Return the policy; None if it cannot be read."""
        return stored_retry(stored)

    def parse(self, text: str) -> Retry:
        """Return the policy."""
        return parse_retry(text)

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return ``max_retries=3, backoff=5m, factor=2``."""
        del zone
        return format_retry(value)

    def to_json(self, value: Any) -> Any:
        """Return the dict of the policy."""
        return value.to_json()

    def shown(self, value: Any) -> Any:
        """Return the text of the policy."""
        return None if value is None else format_retry(value)


class Tags(FieldType):
    """Short texts, one on each line of a form."""

    metavar = "TAG"
    _values = f"a list of at most {MAX_TAGS} strings"

    def check(self, field: str, given: Any) -> list[str]:
        """Return the tags in order, each once."""
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) > MAX_TAGS:
            rule = f"must be a list of at most {MAX_TAGS} strings"
            raise invalid(field, given, rule, "too_many", maximum=MAX_TAGS)
        tags = [check_name(field, as_text(tag)) for tag in copy_as(list, field, given)]
        for tag in tags:
            if len(tag) > TAG_LENGTH:
                rule = f"a tag must have at most {TAG_LENGTH} characters"
                raise invalid(field, tag, rule, "too_long", maximum=TAG_LENGTH)
        return sorted(set(tags))

    def value_of(self, stored: Any) -> Sequence[str]:
        """Return the tags as texts that can be encoded. Manual SQL can write any JSON."""
        tags = stored if isinstance(stored, list) else []
        return [str(tag).encode(errors="replace").decode() for tag in tags]

    def parse(self, text: str) -> list[str]:
        """Return the tags."""
        return [tag for line in text.split("\n") if (tag := line.strip())]

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return one tag on each line. A tag contains no line break."""
        del zone
        return "\n".join(map(str, value))


@dataclass(frozen=True)
class JsonValue(FieldType):
    """A list or a mapping of JSON. ``check`` does not look inside; ``to_columns`` does."""

    metavar = "JSON"
    kind: type = dict

    @property
    def values(self) -> str:
        """The kind of the value."""
        return "a list or tuple" if self.kind is list else "a mapping"

    def check(self, field: str, given: Any) -> Any:
        """Return a copy of the list or the mapping."""
        if self.kind is list:
            if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
                raise invalid(field, given, "must be a list or tuple", "type")
            return copy_as(list, field, given)
        copy = copy_as(dict, field, given) if isinstance(given, Mapping) else None
        if copy is None or not all(isinstance(key, str) for key in copy):
            raise invalid(field, given, "must be a mapping whose keys are strings", "type")
        return copy

    def parse(self, text: str) -> Any:
        """Return the list or the mapping."""
        wanted, example = ("array", '[1, "a"]') if self.kind is list else ("object", '{"key": 1}')
        try:
            value = load_json(text)
        except json.JSONDecodeError as error:
            place = f"{error.msg}, line {error.lineno}, column {error.colno}"
            raise ValueError(
                f"{shorten(text)} is not JSON ({place}); an {wanted} looks like {example}"
            ) from None
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None
        if not isinstance(value, self.kind):
            raise ValueError(f"{shorten(text)} is not a JSON {wanted}, such as {example}")  # noqa: TRY004
        return value

    def format(self, value: Any, zone: ZoneInfo) -> str:
        """Return the JSON, or "" if it is empty."""
        del zone
        if value in ([], {}):
            return ""
        text = json.dumps(value, ensure_ascii=False)
        # A browser shows some characters as nothing, or reverses the text after them.
        is_printable = escape(text) == text
        indent = 2 if _LINE < len(text) <= _PAGE else None
        return json.dumps(value, ensure_ascii=not is_printable, indent=indent)


def task_name(field: str, given: object) -> str:
    """Return the name of a task that is given as its name or as a Celery task.

    Raises InvalidArgumentError.
    """
    if isinstance(given, str):
        return check_name(field, given)
    # A PromiseProxy of a task passes, because its __class__ is the class of the task.
    if isinstance(given, CeleryTask):
        return check_name(field, given.name)
    if isinstance(given, Signature):
        raise _signature_error(field, given)
    raise invalid(field, given, "must be the name of a task, or a Celery task (app.task)", "type")


def _signature_error(field: str, given: Any) -> InvalidArgumentError:
    # The message names only the type: a signature contains the arguments of tasks.
    kind = type(given).__name__.lstrip("_").lower()
    if kind == "signature":
        hint = "pass the task itself, and its arguments as args= and kwargs="
    else:
        hint = f"write a task that starts the {kind} with apply_async(), and pass that task"
    msg = f"{field} is a {kind}: a schedule calls one task, by its name; {hint}"
    return InvalidArgumentError(msg, field=field)


_SHOWN_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def parse_duration(text: str) -> timedelta:
    """Return the duration of ``90``, ``5m``, ``1.5h`` or ``PT5M``. Raises ValueError."""
    for written in (text, f"{text}s"):
        if (short := short_duration(written)) is not None:
            return short
    if text.strip()[:1].upper() == "P":
        parsed = parse_iso_duration(text)
        if isinstance(parsed, timedelta):
            return parsed
    raise ValueError(
        f"{shorten(text)} is not a duration: write seconds, or a number with s, m, h, d or w,"
        " such as 90, 5m, 2h or 1d"
    )


def format_duration(value: timedelta) -> str:
    """Return ``1d``, ``2h``, ``5m`` or ``1.5s``, which ``parse_duration`` reads back exactly."""
    for unit, size in _SHOWN_UNITS:
        count, rest = divmod(value, timedelta(seconds=size))
        if count and not rest:
            return f"{count}{unit}"
    seconds, fraction = divmod(value, timedelta(seconds=1))
    return f"{seconds}.{fraction.microseconds:06}".rstrip("0").rstrip(".") + "s"


def parse_window(text: str) -> timedelta | str:
    """Return the duration, or the share of ``50%`` as text. Raises ValueError."""
    return as_share(text) if "%" in text else parse_duration(text)


def parse_instant(text: str, *, direction: int = 1) -> TypedInstant:
    """Return the instant of ``2026-11-22T09:00``, ``2026-11-22T09:00Z`` or a duration.

    A duration counts from now (``direction`` 1) or back from now (-1). A time of day, ``09:00``, is
    possible for -1. Raises ValueError.
    """
    if direction < 0 and _TIME_OF_DAY.fullmatch(text.strip()):
        text = text.strip()
        return TypedInstant(time(int(text[:-3]), int(text[-2:])))
    try:
        return TypedInstant(datetime.fromisoformat(text.strip()))
    except ValueError:
        pass
    try:
        return TypedInstant(direction * parse_duration(text))
    except ValueError:
        where = "before now" if direction < 0 else "from now"
        raise ValueError(
            f"{shorten(text)} is not a time: write 2026-11-22T09:00 (in the owner's time zone),"
            f" 2026-11-22T09:00Z, or a duration {where} such as 30m, 2h or 1d"
        ) from None


_TIME_OF_DAY = re.compile(r"([01]?[0-9]|2[0-3]):[0-5][0-9]")
_FLAG_WORDS = {"yes": True, "true": True, "no": False, "false": False}
_MAX_DIGITS = 20


def parse_flag(name: str, text: str) -> bool:
    """Return the value of the argument ``name``: yes, no, true or false. Raises ValueError."""
    if text.lower() not in _FLAG_WORDS:
        raise ValueError(f"{name} = {shorten(text)}: write yes or no")
    return _FLAG_WORDS[text.lower()]


def parse_retry(text: str) -> Retry:
    """Return the policy of ``3`` or ``max_retries=3, backoff=5m, factor=2``. Raises ValueError."""
    given: dict[str, object] = {}
    for part in re.split(r"[,\s]+", re.sub(r"\s*=\s*", "=", text.strip(" ,\t\n"))):
        name, separator, value = part.partition("=")
        if not separator:
            name, value = "max_retries", part
        name = name.replace("-", "_")
        if name in given:
            raise ValueError(f"{shorten(text)}: {name} is given twice")
        given[name] = _retry_value(name, value)
    return Retry.from_json(given)


def _retry_value(name: str, text: str) -> object:
    if name in {"backoff", "backoff_max"}:
        return parse_duration(text)
    if name == "until_next_fire":
        return parse_flag(name, text)
    if name not in {"max_retries", "factor"}:
        # Retry names the arguments that exist.
        return text
    try:
        return int(text) if text.isdecimal() and len(text) < _MAX_DIGITS else float(text)
    except ValueError:
        raise ValueError(
            f"{shorten(text)} is not a number: write how many retries, such as 3, or arguments of "
            "Retry, such as 'max_retries=3, backoff=5m, factor=2'"
        ) from None


def format_retry(retry: Retry) -> str:
    """Return ``max_retries=3, backoff=5m, factor=2``, which ``parse_retry`` reads back exactly."""
    if retry == Retry(max_retries=0):
        return "0"
    parts = [
        f"max_retries={retry.max_retries}",
        f"backoff={format_duration(retry.backoff)}",
        f"factor={retry.factor!r}".removesuffix(".0"),
    ]
    if retry.backoff_max is not None:
        parts.append(f"backoff_max={format_duration(retry.backoff_max)}")
    if retry.until_next_fire:
        parts.append("until_next_fire=yes")
    return ", ".join(parts)
