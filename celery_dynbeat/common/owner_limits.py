"""The limits that ``dynbeat_owner_limits`` sets for an owner. PURE."""

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from celery_dynbeat.common import rules
from celery_dynbeat.common.errors import ConfigurationError, InvalidArgumentError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.text import described_owner, shorten, suggestion

logger = logging.getLogger(__name__)

SETTING = "dynbeat_owner_limits"
#: The key of a table for the owners without an entry.
OTHERS = "*"
#: Seconds between two log records about a function that fails.
_WARN_EVERY = 60.0
#: The owners whose last limits one process remembers.
_MAX_KNOWN = 100_000


def setting_of(name: str, owner: str | None = None) -> str:
    """Return how messages name a limit, with its owner if it is given."""
    of = "" if owner is None else f" of {described_owner(owner)}"
    return f"{SETTING}: {name}{of}"


def _invalid(name: str, value: object, text: str) -> ConfigurationError:
    return ConfigurationError(f"{SETTING}: {name} = {shorten(value)}: {text}")


def _interval(value: object) -> timedelta:
    seconds = rules.seconds_of(value)
    if seconds is None or not 0 <= seconds <= rules.MAX_DURATION.total_seconds():
        raise ValueError("must be a timedelta or a number of seconds, from 0 to 100 years")
    return timedelta(seconds=seconds)


def _patterns(value: Any) -> tuple[str, ...]:
    try:
        patterns = (None,) if isinstance(value, (str, bytes, Mapping)) else tuple(value)
    except TypeError:
        patterns = (None,)
    if not all(isinstance(each, str) and each for each in patterns):
        raise ValueError("must be a list of names, in which * matches any")
    return patterns


def _limit(check: rules.Check) -> Any:
    return field(default=None, metadata={"check": check})


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """The limits of one owner, or of every owner.

    - ``max_schedules``: how many schedules the owner may have.
    - ``min_interval``: the shortest time between two fire times, as a timedelta or a number of
      seconds. 0 means no limit, and None means dynbeat_min_interval.
    - ``allowed_tasks``: patterns of the tasks that may run, such as ``"report.*"``.
    - ``max_running``: how many runs may have a place at the same time. A run has its place from
      when it is sent until it ends. It has none while it waits for a retry that beat sends.
    - ``running_key``: the key by which ``max_running`` counts. Owners with the same key share their
      places. None means the owner.

    None means that there is no limit or, in a table, that the limit of ``"*"`` applies. Raises
    ConfigurationError for an invalid value.
    """

    max_schedules: int | None = _limit(
        rules.check("must be a whole number from 0", partial(rules.is_whole, least=0))
    )
    min_interval: timedelta | None = _limit(_interval)
    allowed_tasks: Sequence[str] | None = _limit(_patterns)
    max_running: int | None = _limit(
        rules.check(
            "must be a whole number from 1; to stop an owner, hold its schedules",
            partial(rules.is_whole, least=1),
        )
    )
    running_key: str | None = _limit(
        rules.check(
            f"must be a text of 1 to {rules.MAX_NAME_LENGTH} characters",
            lambda value: rules.is_name(value) and "\0" not in value,
        )
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            try:
                checked = None if value is None else each.metadata["check"](value)
            except ValueError as error:
                raise _invalid(each.name, value, str(error)) from None
            object.__setattr__(self, each.name, checked)

    @classmethod
    def of(cls, given: object) -> "OwnerLimits":
        """Return the limits that a table or a function gave: OwnerLimits, a dict, or None.

        Raises ConfigurationError.
        """
        if given is None:
            return _NO_LIMITS
        if isinstance(given, cls):
            return given
        known = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping):
            message = (
                f"{SETTING}: {shorten(given)} must be OwnerLimits, a dict of its fields, or None"
            )
            raise ConfigurationError(message)
        for name in given:
            if name not in known:
                text = f"there is no such limit; {suggestion(name, known)}"
                raise _invalid(str(name)[:40], given[name], text)
        return cls(**given)


_NO_LIMITS = OwnerLimits()
#: A function of the name of an owner.
LimitFunction: TypeAlias = Callable[[str], "OwnerLimits | Mapping[str, Any] | None"]
Table: TypeAlias = Mapping[str, OwnerLimits]


class Cap(NamedTuple):
    """How many runs with a place the owners with a key may have, for one of them."""

    owner: str
    key: str
    max_running: int


class LimitsByOwner:
    """The limits of each owner, from a table, a function, or the dotted path of one.

    A path is imported at its first use, because its module may import the application. The
    application itself (owner ``""``) has no limits.
    """

    def __init__(self, given: "Table | LimitFunction | str") -> None:
        self._given = given
        #: When the failure of a function was last logged, by the monotonic clock.
        self.warned_at: float | None = None
        #: The limits that the function returned last, for passes while it fails.
        self.last_known: dict[str, OwnerLimits] = {}

    def __repr__(self) -> str:
        # Without an address, because beat compares the representation of the settings after a
        # restart.
        given = self._given
        name = getattr(given, "__qualname__", type(given).__name__) if callable(given) else given
        return f"{type(self).__name__}({name!r})"

    def of(self, owner: str) -> OwnerLimits:
        """Return the limits of an owner.

        Raises ConfigurationError if they are invalid, and the error of a function that fails.
        """
        if not owner:
            return _NO_LIMITS
        given = self.load()
        if callable(given):
            return OwnerLimits.of(given(owner))
        return given.get(owner) or given.get(OTHERS, _NO_LIMITS)

    def load(self) -> "Table | LimitFunction":
        """Return the table or the function, imported if the setting is its dotted path.

        Raises ConfigurationError.
        """
        if isinstance(self._given, str):
            self._given = _imported(self._given)
        return self._given

    @property
    def may_cap_runs(self) -> bool:
        """Whether an owner can have a limit on its runs. With a function, any owner can."""
        if not isinstance(self._given, Mapping):
            return True
        return any(each.max_running for each in self._given.values())

    def cap_of(self, owner: str) -> Cap | None:
        """Return the limit on the runs of an owner, or None. Raises as ``of`` does."""
        limits = self.of(owner) if self.may_cap_runs else _NO_LIMITS
        if limits.max_running is None:
            return None
        return Cap(owner, limits.running_key or owner, limits.max_running)

    def check_task(self, *, owner: str, task: str) -> None:
        """Raise InvalidArgumentError if no pattern of ``owner`` matches ``task``.

        Patterns are case-sensitive. Raises as ``of`` does.
        """
        patterns = self.of(owner).allowed_tasks
        if patterns is None or any(fnmatchcase(task, pattern) for pattern in patterns):
            return
        msg = (
            f"task = {task!r}: {setting_of('allowed_tasks', owner)} = {list(patterns)} does not"
            f" let owner {owner!r} run it; choose a task that a pattern matches, or add a pattern"
            " to the setting"
        )
        raise InvalidArgumentError(msg, field="task", code="not_allowed")

    def knows(self, owner: str) -> bool:
        """Return whether the limits of the owner were read without an error."""
        self.of(owner)
        return True

    def for_pass(self) -> "LimitsByOwner":
        """Return limits for one pass, which read each name only once and raise no error."""
        return _LimitsOfPass(self._given, self)


class _LimitsOfPass(LimitsByOwner):
    """The limits while beat plans many schedules, or a page shows them.

    A function that fails must not quarantine schedules. If it fails, the limits that it returned
    last apply, or none if this process knows none. At most one log record per minute reports this.
    """

    def __init__(self, given: "Table | LimitFunction | str", source: LimitsByOwner) -> None:
        super().__init__(given)
        self._source = source
        self._known: dict[str, OwnerLimits] = {}
        self._failed: set[str] = set()

    def knows(self, owner: str) -> bool:
        self.of(owner)
        return owner not in self._failed

    def of(self, owner: str) -> OwnerLimits:
        known = self._known.get(owner)
        if known is None:
            known = self._known[owner] = self._read(owner)
        return known

    def for_pass(self) -> LimitsByOwner:
        return self

    def _read(self, owner: str) -> OwnerLimits:
        known = self._source.last_known
        try:
            limits = self._source.of(owner)
        # This is a function of the operator, which may raise anything.
        except Exception:
            source, now = self._source, monotonic()
            if source.warned_at is None or now - source.warned_at >= _WARN_EVERY:
                source.warned_at = now
                logger.warning(
                    "%s failed for %r: the limits that it returned last apply, or none if it has"
                    " returned none since the start; correct the function",
                    SETTING,
                    owner,
                    exc_info=True,
                    extra={"event": Event.OWNER_LIMITS_FAILED, "owner": owner},
                )
            self._failed.add(owner)
            return known.get(owner, _NO_LIMITS)
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known[owner] = limits
        return limits


#: The limits of an installation that sets none.
NO_OWNER_LIMITS = LimitsByOwner({})


def owner_limits(value: object) -> LimitsByOwner:
    """Return the limits that the setting gives. Raises ValueError and ConfigurationError."""
    if isinstance(value, str) and all(map(str.isidentifier, value.split("."))) and "." in value:
        return LimitsByOwner(value)
    found = _source(value)
    if found is None:
        msg = (
            "must be OwnerLimits, a dict of limits by owner, a function that returns the limits of"
            " an owner, or the dotted path of one, such as 'proj.plans.limits_of'"
        )
        raise ValueError(msg)
    return LimitsByOwner(found)


def _source(value: Any) -> "Table | LimitFunction | None":
    if isinstance(value, OwnerLimits):
        return {OTHERS: value}
    if isinstance(value, Mapping):
        return _table(value)
    return value if callable(value) else None


def _table(given: Mapping[Any, Any]) -> Table:
    for name in given:
        if not rules.is_name(name):
            message = (
                f"{SETTING}: the key {shorten(name)} must be an owner, or '*' for all other owners"
            )
            raise ConfigurationError(message)
    table = {name: OwnerLimits.of(limits) for name, limits in given.items()}
    others = table.get(OTHERS, _NO_LIMITS)
    return {name: _completed(limits, others) for name, limits in table.items()}


def _completed(limits: OwnerLimits, others: OwnerLimits) -> OwnerLimits:
    """Return ``limits``, with those of ``others`` in place of None."""
    values = {each.name: getattr(limits, each.name) for each in fields(limits)}
    return replace(others, **{name: value for name, value in values.items() if value is not None})


def _imported(path: str) -> "Table | LimitFunction":
    module, _, name = path.rpartition(".")
    # `celery -A` removes the working directory from the path after it has loaded the application.
    path_before, sys.path[:0] = [*sys.path], [str(Path.cwd())]
    try:
        given = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        message = f"{SETTING} = {path!r}: cannot be imported ({error}); correct the path"
        raise ConfigurationError(message) from error
    finally:
        sys.path[:] = path_before
    found = _source(given)
    if found is None:
        message = f"{SETTING} = {path!r}: must be the path of OwnerLimits, a dict or a function"
        raise ConfigurationError(message)
    return found
