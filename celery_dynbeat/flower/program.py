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
from celery_dynbeat.flower.options import unknown_option


def run(context: click.Context, arguments: Sequence[str]) -> None:
    """Do what Flower's own command does, with the application of the schedule pages.

    Raises UsageError for an unknown ``--dynbeat-*`` option.
    """
    error = unknown_option(arguments)
    if error is not None:
        raise click.UsageError(error, context)
    command.warn_about_celery_args_used_in_flower_command(context.parent, arguments)
    command.apply_env_options()
    command.apply_options(sys.argv[0], arguments)
    command.extract_settings()
    command.setup_logging()

    application = DynbeatFlower(
        options=command.options, capp=context.obj.app, settings=command.settings
    )
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
