"""The name of the beat or worker that this process belongs to, for log records."""

import os
from typing import NamedTuple


class _Named(NamedTuple):
    pid: int
    name: str


# A log formatter has no other way to it: the standard library creates formatters without arguments.
_named: _Named | None = None


def set_node_name(name: str) -> None:
    """Set the name, unless this process has one: a worker with ``-B`` can run beat in a thread."""
    global _named  # noqa: PLW0603 - see above
    if _named is None or _named.pid != os.getpid():
        _named = _Named(os.getpid(), name)


def node_name() -> str | None:
    """Return the name. A forked process has that of its parent until it sets another."""
    return None if _named is None else _named.name
