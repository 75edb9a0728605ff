"""The setting ``dynbeat_recipient``, which says who gets the notices to an owner."""

import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from time import monotonic
from typing import Any, TypeAlias

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.text import shorten

logger = logging.getLogger(__name__)

SETTING = "dynbeat_recipient"
MAX_TASK_LENGTH = 255
#: Seconds between two log records about a function that fails.
WARN_EVERY = 60.0
#: Returns Apprise URLs, the name of a task, or None for the owner of its argument.
RecipientFunction: TypeAlias = Callable[[str], Sequence[str] | str | None]
#: Returns a list of Apprise URLs, which errors call by the name. Raises ValueError.
CheckUrls: TypeAlias = Callable[[str, object], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class NoticeTask:
    """A task of the application that gets each notice."""

    name: str


class RecipientError(Exception):
    """The function failed or returned an invalid value. The text shows no URL."""


class Recipient:
    """The function of the setting.

    A dotted path is imported at its first use, because the module may import the application.
    """

    def __init__(self, given: RecipientFunction | str, *, check_urls: CheckUrls) -> None:
        self._given, self._check_urls = given, check_urls
        self._warned_at: float | None = None

    def __repr__(self) -> str:
        # Without an address, because beat compares the representation of the settings after a
        # restart.
        given = self._given
        name = getattr(given, "__qualname__", type(given).__name__) if callable(given) else given
        return f"{type(self).__name__}({name!r})"

    def load(self) -> RecipientFunction:
        """Return the function. Raises ConfigurationError if its path cannot be imported."""
        if callable(self._given):
            return self._given
        module, _, name = self._given.rpartition(".")
        try:
            found: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError) as error:
            message = f"{SETTING} = {self._given!r}: cannot be imported ({error}); correct the path"
            raise ConfigurationError(message) from error
        if not callable(found):
            message = f"{SETTING} = {self._given!r}: must be the path of a function"
            raise ConfigurationError(message)
        function: RecipientFunction = found
        self._given = function
        return function

    def of(self, owner: str) -> Sequence[str] | NoticeTask | None:
        """Return the Apprise URLs or the task for the notices of ``owner``, or None for no notices.

        Raises RecipientError, and logs its reason at most once a minute.
        """
        try:
            return self._checked(self.load()(owner))
        # A function of the operator: it may raise anything, even SystemExit, which would end its
        # thread. The text may contain a URL.
        except BaseException as error:  # noqa: BLE001
            reason = str(error) if isinstance(error, RecipientError) else type(error).__name__
            self.warn(owner, reason)
            raise RecipientError(f"{SETTING} failed: {reason}") from None

    def _checked(self, value: object) -> Sequence[str] | NoticeTask | None:
        if value is None:
            return None
        if isinstance(value, str):
            return _task(value)
        try:
            return self._check_urls("the result", value) or None
        except ValueError as error:
            raise RecipientError(f"{error}, or the name of a task, or None") from None

    def warn(self, owner: str, reason: str) -> None:
        """Log why an owner has no recipient, at most once in WARN_EVERY."""
        now = monotonic()
        if self._warned_at is not None and now - self._warned_at < WARN_EVERY:
            return
        self._warned_at = now
        logger.warning(
            "%s failed for %r: %s; correct the function",
            SETTING,
            owner,
            reason,
            exc_info=sys.exc_info()[1] if logger.isEnabledFor(logging.DEBUG) else None,
            extra={"event": Event.RECIPIENT_FAILED, "owner": owner},
        )


def _task(name: str) -> NoticeTask:
    if "://" in name:
        msg = "a URL must be in a list; only the name of a task is a string"
        raise RecipientError(msg)
    if not 0 < len(name) <= MAX_TASK_LENGTH or not name.isprintable():
        rule = f"the name of a task must have 1 to {MAX_TASK_LENGTH} printable characters"
        raise RecipientError(f"{shorten(name)}: {rule}")
    return NoticeTask(name)


def recipient(value: object, *, check_urls: CheckUrls) -> Recipient:
    """Return the recipient that the setting gives. Raises ValueError."""
    is_path = isinstance(value, str) and all(map(str.isidentifier, value.split(".")))
    if callable(value) or (isinstance(value, str) and is_path and "." in value):
        return Recipient(value, check_urls=check_urls)
    msg = (
        "must be a function that returns the Apprise URLs or the task for an owner, or the dotted"
        " path of one, such as 'proj.notices.recipient_of'"
    )
    raise ValueError(msg)
