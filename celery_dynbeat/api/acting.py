"""Who makes the edits of a block of code, and why: for the audit.

A context variable has a separate value in each thread and each asyncio task. A new task starts with
the value of the task that creates it, and so does ``asyncio.to_thread``. A new thread starts with
the default.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from celery_dynbeat.api.checks import check_name, check_text


@dataclass(frozen=True, slots=True)
class Acting:
    """The actor of an edit and the reason. "" means that none was given."""

    actor: str = ""
    reason: str = ""


_NONE = Acting()
#: The blocks that have not ended, the innermost last.
_blocks: ContextVar[tuple[Acting, ...]] = ContextVar("dynbeat_acting", default=())


@contextmanager
def acting_as(*, actor: str | None, reason: str | None) -> Iterator[None]:
    """Do the edits of one call in the name of ``actor``. None means the innermost block's actor.

    Raises InvalidScheduleError.
    """
    if actor is None and reason is None:
        yield
        return
    present = current_actor()
    with acting(
        actor=present.actor if actor is None else actor,
        reason=present.reason if reason is None else reason,
    ):
        yield


@contextmanager
def acting(*, actor: str, reason: str = "") -> Iterator[None]:
    """Make ``actor`` and ``reason`` part of the audit of each edit in the block.

    ``actor`` has at most 255 characters, such as the name of a user. ``reason`` has at most 1,024.
    Blocks can be nested. The inner actor and reason replace the outer actor and reason. Raises
    InvalidScheduleError with field ``"actor"`` or ``"reason"``.
    """
    block = Acting(check_name("actor", actor, empty=True), check_text("reason", reason))
    _blocks.set((*_blocks.get(), block))
    try:
        yield
    finally:
        # reset(token) would fail, because a framework may leave the block in another context, which
        # has no token. A generator may end its block after a block that began later, or before it.
        _blocks.set(tuple(each for each in _blocks.get() if each is not block))


def current_actor() -> Acting:
    """Return the actor and the reason of the innermost ``acting`` block."""
    return (_blocks.get() or (_NONE,))[-1]
