"""Start Flower with the schedule pages, as Flower's own command starts Flower."""

import atexit
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import click
from flower import command

from celery_dynbeat.flower.application import DynbeatFlower
from celery_dynbeat.flower.base.access import why_wrong_hosts
from celery_dynbeat.flower.options import unknown_option


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
