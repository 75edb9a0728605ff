"""What the API returns for the arguments of a run."""

from dataclasses import dataclass
from typing import Any

from celery_dynbeat.api.results.base import Info


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments(Info):
    """The arguments that a run was sent with.

    If ``unknown`` is not None, they are not known, and it is a sentence that says why. ``args`` and
    ``kwargs`` are then None. SQL by hand can write any JSON.
    """

    args: Any = None
    kwargs: Any = None
    unknown: str | None = None
