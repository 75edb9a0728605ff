"""The options that ``celery dynbeat flower`` adds to Flower's options.

They are Tornado options, like Flower's options. The command line, FLOWER_* environment variables
and flowerconfig.py can set them.
"""

import difflib
from collections.abc import Iterable

from tornado.options import define, options

PREFIX = "dynbeat_"

define(
    "dynbeat_unauthenticated_writes",
    type=bool,
    default=False,
    help="allow the schedule pages to change schedules without auth or basic_auth",
)
define(
    "dynbeat_allowed_hosts",
    type=str,
    multiple=True,
    help="hosts of Flower in URLs, in addition to loopback names and addresses",
)
define(
    "dynbeat_hide_arguments",
    type=bool,
    default=False,
    help="do not show the arguments of tasks on the schedule pages",
)
define(
    "dynbeat_query_timeout",
    type=float,
    default=10.0,
    help="seconds that a database call of a schedule page may take",
)
define(
    "dynbeat_metrics",
    type=bool,
    default=False,
    help="add the gauges of the database to /metrics, even without dynbeat_metrics_port",
)


def unknown_option(arguments: Iterable[str]) -> str | None:
    """Return an error for the first unknown ``--dynbeat-*`` argument, or None if there is none.

    Flower ignores unknown options. A misspelt ``--dynbeat-hide-arguments`` would show arguments.
    """
    for argument in arguments:
        name = argument.lstrip("-").partition("=")[0].replace("-", "_")
        if not argument.startswith("-") or not name.startswith(PREFIX) or hasattr(options, name):
            continue
        known = [f"--{each.replace('_', '-')}" for each in options if each.startswith(PREFIX)]
        given = f"--{name.replace('_', '-')}"
        similar = difflib.get_close_matches(given, known, n=1) or known
        return f"unknown option {given}; did you mean {' or '.join(similar)}?"
    return None


__all__ = ["PREFIX", "options", "unknown_option"]
