"""Owners and tasks that begin with a text. Case matters."""

import json
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy.orm import Session

from celery_dynbeat.api import checks
from celery_dynbeat.api.checks import check_limit
from celery_dynbeat.process.context import Context
from celery_dynbeat.store.schedules import suggestions as store

#: Celery's own tasks.
_BUILT_IN = "celery."


def owners(
    context: Context, *, prefix: str, limit: int = 10, session: Session | None = None
) -> Sequence[str]:
    """Return up to ``limit`` owners of schedules that begin with ``prefix``, in order.

    The application itself is the owner ``""``.
    """
    _check(prefix, limit)
    return context.read_many(
        session, lambda session: store.owners(session, prefix=prefix, limit=limit)
    )


def tasks(
    context: Context, *, prefix: str, limit: int = 10, session: Session | None = None
) -> Sequence[str]:
    """Return up to ``limit`` task names that begin with ``prefix``, in order.

    They are the tasks that living workers registered and the tasks of this application, without
    Celery's own tasks.
    """
    _check(prefix, limit)
    seen_since = context.now(session) - context.settings.node_timeout
    lists = context.read_many(
        session, lambda session: store.task_lists(session, seen_since=seen_since)
    )
    names = {*_texts(lists), *context.task_names.known()}
    found = (name for name in names if name.startswith(prefix) and not name.startswith(_BUILT_IN))
    return sorted(found)[:limit]


def _check(prefix: str, limit: int) -> None:
    checks.check_prefix("prefix", prefix)
    check_limit("limit", limit)


def _texts(lists: Iterable[str]) -> Iterator[str]:
    """Yield the texts in JSON arrays. A row that a person wrote can contain anything."""
    for each in lists:
        try:
            values = json.loads(each)
        except (ValueError, RecursionError):
            continue
        if isinstance(values, list):
            yield from (value for value in values if isinstance(value, str))
