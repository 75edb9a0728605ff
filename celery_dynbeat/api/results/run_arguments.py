"""The result of the call that returns the arguments of a run."""

from dataclasses import dataclass
from typing import Any

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments(Info):
    """The arguments that a run was sent with.

    If the arguments are not known, ``unknown`` is a sentence that says why, and ``args`` and
    ``kwargs`` are None. Otherwise, ``unknown`` is None. ``args`` and ``kwargs`` can be any JSON,
    because manual SQL can write any JSON.
    """

    args: Any = None
    kwargs: Any = None
    unknown: str | None = None
