"""``dynbeat flower``: Flower with the schedule pages."""

import click

from celery_dynbeat.cli.base.invocation import DocumentedCommand

INSTALL = (
    "Flower is not installed: pip install 'celery-dynbeat[flower]' installs it for the schedule"
    " pages"
)


@click.command("flower", cls=DocumentedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[OPTIONS OF FLOWER]")
@click.pass_context
def flower(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Start Flower with pages for schedules, runs and beats.

    You can pass all options of Flower, such as --port, --address, --basic-auth, --auth,
    --url-prefix and --read-only. FLOWER_* environment variables and flowerconfig.py work as well.

    If you omit --auth and --basic-auth, the schedule pages are read-only.
    --dynbeat-unauthenticated-writes allows changes without a login. --dynbeat-allowed-hosts=NAMES
    lists the host names of this Flower in URLs. If there is no login, Flower accepts only these
    names, loopback names and addresses. --dynbeat-hide-arguments hides the arguments of tasks.
    --dynbeat-query-timeout=SECONDS limits each database call (default: 10).

    For example:
        flower --port=5555 --basic-auth=alice:secret
        flower --read-only --dynbeat-hide-arguments

    Exit status: 0: stopped. 1: Flower is not installed. 2: the command line is invalid.
    """
    try:
        from celery_dynbeat.flower import application  # noqa: PLC0415 - Flower is optional
    except ModuleNotFoundError as error:
        if error.name != "flower":
            raise
        raise click.ClickException(INSTALL) from None
    application.run(context, arguments)
