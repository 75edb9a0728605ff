"""JSON that people write: a repeated key is an error. ``json.loads`` would keep its last value."""

import json
from collections.abc import Sequence
from typing import Any

from celery_dynbeat.common.text import shorten


class RepeatedKeyError(ValueError):
    """An object of the text has the key ``key`` twice."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {shorten(key)} occurs twice in one object; give it once")
        self.key = key


def load_json(text: str) -> Any:
    """Return the value of ``text``.

    Raises RepeatedKeyError, and the errors of ``json.loads``: ValueError and RecursionError.
    """
    return json.loads(text, object_pairs_hook=_with_unique_keys)


def _with_unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, inner in pairs:
        if key in value:
            raise RepeatedKeyError(key)
        value[key] = inner
    return value
