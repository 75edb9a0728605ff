"""The values that a search box suggests while a person types."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.text import escape
from celery_dynbeat.flower.base.page import PageHandler
from celery_dynbeat.flower.base.search_text import term
from celery_dynbeat.insights.statistics import suggestions

_SEARCHES: Mapping[str, Callable[..., Sequence[str]]] = {
    "owner": suggestions.owners,
    "task": suggestions.tasks,
    "tag": suggestions.tags,
}


class Suggestions(PageHandler):
    """``?key=owner&prefix=user:`` answers with owners, as JSON."""

    tab = "schedules"
    arguments = frozenset({"key", "prefix"})

    async def get(self) -> None:
        """Answer with the terms for the box, and with the texts to show."""
        key, prefix = self.argument("key"), self.argument("prefix")
        search = _SEARCHES.get(key)
        if search is None:
            msg = f"key = {key[:80]!r}: must be one of {', '.join(_SEARCHES)}"
            raise InvalidScheduleError(msg, field="key")
        found = await self.call(lambda: search(self.dynbeat.context, prefix=prefix))
        self.finish({"suggestions": [_suggestion(key, value) for value in found]})


def _suggestion(key: str, value: str) -> dict[str, Any]:
    return {"term": term(key, value), "value": value, "label": escape(value) or "(app)"}
