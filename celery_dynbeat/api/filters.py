"""The keys of the filters: as keywords of calls, in a search box, in a URL, and as options.

``KEYS`` declares each key once. ``checked`` accepts a filter from Python, ``from_texts`` one from
the arguments of a URL or a form, and ``parse_search`` the text of a search box:

    owner:user:42 name:dig        each condition must hold
    dig                           a text without a key is a name
    owner:"" name:"daily report"  quotes: an empty value, white space, a *
    customer:13                   an unknown key: text:customer:13, a part of an owner or a name

A call takes ``**matching: Unpack[RunKeywords]``: an editor shows the keywords, and mypy and pyright
reject others. ``Calls`` rejects them at run time.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypedDict, TypeVar

from celery_dynbeat.api import checks
from celery_dynbeat.common.errors import InvalidArgumentError
from celery_dynbeat.common.filters import ChangeFilter, RunFilter, ScheduleFilter, StatusFilter
from celery_dynbeat.common.states import Action, Origin, State, Status
from celery_dynbeat.common.text import cut

F = TypeVar("F", ScheduleFilter, RunFilter, ChangeFilter)
#: Characters of a search, and those of a term that an error shows.
MAX_SEARCH = 2_000
_SHOWN = 60
# A term: a key and a colon, both optional, and a value. The value is quoted or has no quotes.
_TERM = re.compile(r'(?:(?P<key>\w+):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]*))(?!\S)')
_PLAIN = re.compile(r'[^\s"*]+')
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


class OwnerFilter(TypedDict, total=False):
    """The filter of calls that can be limited only to an owner."""

    owner: str | None


class ScheduleKeywords(TypedDict, total=False):
    """The filter of a list of schedules. A key that is omitted or None matches any value.

    - ``owner``: the schedules of this owner. The calls of one owner accept only that owner.
    - ``owner_prefix``: the beginning of the owner, case-sensitive, such as ``"org:7/"``. The calls
      of one owner do not accept it.
    - ``task``: the exact name of a task.
    - ``tag``: one tag.
    - ``enabled``: False matches paused schedules.
    - ``state``: ``"active"``, ``"paused"``, ``"finished"``, ``"quarantined"``, ``"held"``,
      ``"overdue"`` or ``"failing"``.
    - ``name_prefix``: the beginning of the name, case-sensitive.
    """

    owner: str | None
    owner_prefix: str | None
    task: str | None
    enabled: bool | None
    tag: str | None
    state: str | None
    name_prefix: str | None


class RunKeywords(TypedDict, total=False):
    """The filter of runs. A key that is omitted or None matches any value.

    - ``owner``: the runs of this owner. The calls of one owner accept only that owner.
    - ``status``: one status, or several.
    - ``task``: the exact name of a task.
    - ``origin``: the origin, such as ``"manual"``.
    - ``batch_id``: the runs of this batch.
    - ``since``, ``until``: aware datetimes, with since <= fire time < until.
    """

    owner: str | None
    status: StatusFilter | None
    task: str | None
    origin: str | None
    batch_id: str | None
    since: datetime | None
    until: datetime | None


class ChangeKeywords(TypedDict, total=False):
    """The filter of changes. A key that is omitted or None matches any value.

    - ``owner``: the edits of this owner. The calls of one owner accept only that owner.
    - ``actor``: the exact name of an actor.
    - ``action``: the action, such as ``"pause"``.
    - ``since``, ``until``: aware datetimes, with since <= time of the edit < until.
    """

    owner: str | None
    actor: str | None
    action: str | None
    since: datetime | None
    until: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key of a filter. ``name`` is the key in a search box, in a URL, and of an option.

    ``field`` is the field of the filter, by default ``name``. ``check`` returns the value of a call
    as the filter has it.
    """

    name: str
    field: str = ""
    check: Callable[[str, Any], Any] = checks.check_name
    label: str = ""
    #: The option of a command, by default ``--name``; its help after "Only runs"; its metavar.
    option: str = ""
    help: str = ""
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    #: Whether the calls, the URLs of pages, and a search box have the key.
    in_calls: bool = True
    in_urls: bool = True
    in_search: bool = True
    #: Whether an empty text is a value. For example, the owner "" is the application.
    can_be_empty: bool = False
    #: Whether the key can have several values.
    repeats: bool = False
    is_instant: bool = False
    #: The key that ends the span that this key begins. One chip shows both.
    end: str = ""
    #: A key that has no meaning without this key.
    dependent: str = ""

    @property
    def of_filter(self) -> str:
        """The field of the filter."""
        return self.field or self.name


def _check_prefix(field: str, value: Any) -> str | None:
    return checks.check_prefix(field, value) or None


def _check_owner_prefix(field: str, value: Any) -> str:
    if not checks.check_prefix(field, value):
        raise checks.invalid(field, value, "must not be empty")
    return str(value)


def _check_name(field: str, value: Any) -> str:
    return checks.check_name(field, value, empty=True)


def _one_of(name: str, choices: Sequence[str], *, help: str) -> Key:  # noqa: A002 - as in Key
    def check(field: str, value: Any) -> str:
        return checks.check_one_of(field, value, *choices)

    texts = tuple(map(str, choices))
    return Key(name=name, check=check, choices=texts, help=help, in_search=False)


def _check_status(field: str, value: Any) -> tuple[str, ...]:
    return checks.check_choices(field, value, *Status)


_OWNER = Key(
    name="owner", check=_check_name, can_be_empty=True, help="of this owner", metavar="OWNER"
)
_TASK = Key(name="task", help="of this task", metavar="TASK")
_SINCE = Key(
    name="since",
    check=checks.check_required_instant,
    help="since this time, such as 2h (ago)",
    in_search=False,
    is_instant=True,
)
_SPAN = (_SINCE, replace(_SINCE, name="until", help="before this time"))
#: The keys of each filter, in the order of a search box and of its chips.
KEYS: Mapping[type, Sequence[Key]] = {
    ScheduleFilter: (
        _one_of("state", [*State], help="in this state"),
        _OWNER,
        Key(
            name="owner_prefix",
            check=_check_owner_prefix,
            label="owner prefix",
            help="whose owners begin with TEXT, such as org:7/",
        ),
        _TASK,
        Key(name="tag", help="with this tag", metavar="TAG"),
        Key(
            name="name",
            field="name_prefix",
            check=_check_prefix,
            option="name_prefix",
            help="whose names begin with TEXT",
        ),
        Key(name="text", in_calls=False),
        Key(name="enabled", check=checks.check_flag, in_urls=False, in_search=False),
    ),
    RunFilter: (
        replace(
            _one_of("status", [*Status], help="with this status. Can be repeated"),
            check=_check_status,
            repeats=True,
        ),
        replace(_OWNER, dependent="name"),
        Key(name="name", help="of schedules with this name", metavar="NAME"),
        _TASK,
        replace(_one_of("origin", [*Origin], help="with this origin"), in_search=True),
        Key(name="batch", field="batch_id", check=checks.check_run_id, help="of this batch"),
        Key(name="worker", in_calls=False),
        Key(name="text", in_calls=False),
        *_SPAN,
    ),
    ChangeFilter: (
        _OWNER,
        Key(name="name", check=_check_name, can_be_empty=True),
        Key(
            name="actor",
            check=_check_name,
            can_be_empty=True,
            help="by this actor",
            metavar="NAME",
        ),
        _one_of("action", [*Action], help="with this action"),
        *_SPAN,
    ),
}
#: The key of a text without a key, and that of a text with an unknown key.
_DEFAULT, _TEXT = "name", "text"


def checked(matching: F) -> F:
    """Return the filter with its values as the store reads them. Raises InvalidArgumentError."""
    values = {
        key.of_filter: key.check(key.of_filter, value)
        for key in KEYS[type(matching)]
        if (value := getattr(matching, key.of_filter)) is not None
    }
    if values.get("owner_prefix") is not None and values.get("owner") is not None:
        rule = f"cannot be combined with owner {values['owner']!r}: leave one of them out"
        raise checks.invalid("owner_prefix", values["owner_prefix"], rule)
    return replace(matching, **values)


def from_texts(
    kind: type[F],
    given: Mapping[str, Sequence[str]],
    *,
    instant: Callable[[str, str], datetime] | None = None,
) -> F:
    """Return the filter of the texts of each key, as a URL or a form has them.

    An empty text is no condition, except for a key that can be empty. Of several texts, the last
    one counts, except for a key that repeats. ``instant`` converts the text of a key with an
    instant. Raises InvalidArgumentError.
    """
    values: dict[str, Any] = {}
    for key in url_keys(kind):
        texts = [text for text in given.get(key.name, ()) if text or key.can_be_empty]
        if not texts:
            continue
        text = texts[-1]
        value = instant(key.name, text) if key.is_instant and instant else text
        values[key.of_filter] = texts if key.repeats else value
    return checked(kind(**values))


def to_texts(matching: F) -> dict[str, Sequence[str]]:
    """Return the texts of each key that the filter has: the reverse of ``from_texts``."""
    texts: dict[str, Sequence[str]] = {}
    for key in url_keys(type(matching)):
        value = getattr(matching, key.of_filter)
        if value is not None:
            values = value if key.repeats else [value]
            texts[key.name] = [each.isoformat() if key.is_instant else each for each in values]
    return texts


def url_keys(kind: type) -> Sequence[Key]:
    """Return the keys that the URL of a list has."""
    return [key for key in KEYS[kind] if key.in_urls]


def search_keys(kind: type) -> Sequence[Key]:
    """Return the keys that the search box of a list has."""
    return [key for key in KEYS[kind] if key.in_search]


def search_text(kind: type, given: Mapping[str, Sequence[str]]) -> str:
    """Return the text of a search box for the texts of each key."""
    return " ".join(
        term(key.name, text)
        for key in search_keys(kind)
        for text in given.get(key.name, ())[-1:]
        if text or key.can_be_empty
    )


def term(key: str, value: str) -> str:
    """Return ``key:value`` as a search box takes it, in quotes where they are needed."""
    if _PLAIN.fullmatch(value):
        return f"{key}:{value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}:"{escaped}"'


def parse_search(kind: type, text: str) -> dict[str, str | None]:
    """Return the value of each key of a search box, None for a key that ``text`` does not have.

    Raises InvalidArgumentError with field ``"q"``.
    """
    keys = {key.name: key for key in search_keys(kind)}
    found: dict[str, str | None] = dict.fromkeys(keys)
    if len(text) > MAX_SEARCH:
        raise _refused(f"The search has more than {MAX_SEARCH:,} characters.")
    for match in _terms(text.strip()):
        name = match["key"] or _DEFAULT
        can_be_empty = name in keys and keys[name].can_be_empty
        value = _value(match, name, can_be_empty=can_be_empty)
        if name not in keys:
            # Owners contain colons.
            name, value = _TEXT, f"{name}:{value}"
        first = found[name]
        if first is not None and match["key"] is None:
            together = term(name, cut(f"{first} {value}", _SHOWN))
            raise _refused(
                f"There are two values for {name}. If a value contains white space, put it in"
                f" quotes: {together}"
            )
        if first is not None:
            raise _refused(f"{name}: occurs twice. A search can contain each key only once.")
        found[name] = value
    return found


def _terms(text: str) -> Iterator[re.Match[str]]:
    while text:
        match = _TERM.match(text)
        if match is None:
            raise _refused(
                f"The quotes in {cut(text, _SHOWN)} do not match. Write one pair around a value,"
                ' as in name:"daily report", and \\" for a quote in it.'
            )
        yield match
        text = text[match.end() :].lstrip()


def _value(match: re.Match[str], key: str, *, can_be_empty: bool) -> str:
    plain = match["plain"] or ""
    if "*" in plain:
        raise _refused(
            f"{cut(match.group(), _SHOWN)}: * is not a wildcard. A search for a name finds all"
            " names that begin with it. An owner, task or tag must match exactly. To search for an"
            ' asterisk, write quotes, as in "a*".'
        )
    value = plain or _ESCAPED.sub(r"\1", match["quoted"] or "")
    if not value and (not can_be_empty or match["quoted"] is None):
        hint = f' Write {key}:"" for the application itself.' if can_be_empty else ""
        raise _refused(f"{key}: has no value.{hint}")
    return value


def _refused(text: str) -> InvalidArgumentError:
    return InvalidArgumentError(text, field="q")
