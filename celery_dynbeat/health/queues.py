"""The names that a worker reports."""

import json


def reported_names(text: str | None) -> frozenset[str] | None:
    """Return the names of a node's row, or None if they are not known.

    ``text`` is an array of JSON, or None if the node reports nothing. Manual SQL can damage it.
    """
    try:
        names = None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        return None
    return frozenset(map(str, names)) if isinstance(names, list) else None
