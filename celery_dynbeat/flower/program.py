"""Start Flower with the schedule pages, as Flower's own command starts Flower.

The options are Tornado options, like Flower's options. The command line, FLOWER_* environment
variables and flowerconfig.py can set them.
"""

import atexit
import difflib
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click
from flower import command
from tornado.options import define, options

from celery_dynbeat.flower.application import DynbeatFlower
from celery_dynbeat.flower.base.access import why_wrong_hosts

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


def run(context: click.Context, arguments: Sequence[str]) -> None:
    """Do what Flower's own command does, with the application of the schedule pages.

    Raises UsageError for an unknown ``--dynbeat-*`` option, and for a wrong host.
    """
    error = unknown_option(arguments)
    if error is not None:
        raise click.UsageError(error, context)
    command.warn_about_celery_args_used_in_flower_command(context.parent, arguments)
    command.apply_env_options()
    command.apply_options(sys.argv[0], arguments)
    error = why_wrong_hosts(command.options.dynbeat_allowed_hosts)
    if error is not None:
        raise click.UsageError(error, context)
    command.extract_settings()
    command.setup_logging()

    application = DynbeatFlower(
        options=command.options, capp=context.obj.app, settings=command.settings
    )
    given = context.find_root().params.get("app")
    application.application_name = given if isinstance(given, str) else None
    atexit.register(application.stop)
    signal.signal(signal.SIGTERM, command.sigterm_handler)
    _start(context, application)


def _start(context: click.Context, application: DynbeatFlower) -> None:
    is_encrypted = "ssl_options" in command.settings
    banner: tuple[Any, ...] = (context.obj.app, is_encrypted)
    # Flower 2.2 opens its socket before it starts, and prints the port.
    if hasattr(application, "start_http_server"):
        banner = (*banner, application.start_http_server())
    if not context.obj.quiet:
        command.print_banner(*banner)
    with suppress(KeyboardInterrupt, SystemExit):
        application.start()


__all__ = ["PREFIX", "options", "run", "unknown_option"]
