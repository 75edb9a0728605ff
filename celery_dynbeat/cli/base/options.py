"""Options that several commands share. Each is a decorator."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from celery_dynbeat.api import Dynbeat, dynbeat_of
from celery_dynbeat.cli.base.invocation import shell_user
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.common.text import MAX_BATCH, MAX_PAGE_SIZE

#: The maximum number of names that a shell offers.
MAX_COMPLETED = 100
F = TypeVar("F", bound=Callable[..., Any])


def combined(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options, in this order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def complete_owners(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the owners that a shell offers for ``incomplete``."""
    del parameter
    # Late imports, here and below: a completion of option names opens no database.
    from celery_dynbeat.insights.statistics import suggestions  # noqa: PLC0415

    return list(
        _completed(
            context,
            lambda found: suggestions.owners(found.context, prefix=incomplete, limit=MAX_COMPLETED),
        )
    )


def complete_names(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of the owner's schedules that a shell offers for ``incomplete``."""
    del parameter
    owner = context.params.get("owner") or ""
    return list(
        _completed(
            context,
            lambda found: [
                each.name
                for each in found.schedules.for_owner(owner).list(
                    name_prefix=incomplete or None, limit=MAX_COMPLETED
                )
            ],
        )
    )


def _completed(
    context: click.Context, search: Callable[["Dynbeat"], Iterable[str]]
) -> Iterable[str]:
    """Return what ``search`` finds.

    A shell shows no error, so after an error, there is no completion.
    """
    from celery.app.utils import find_app  # noqa: PLC0415

    given = context.find_root().params.get("app")
    try:
        return search(dynbeat_of(find_app(given) if isinstance(given, str) else given))
    # Loading the application runs any code.
    except Exception:  # noqa: BLE001
        return []


name_argument = click.argument("name", shell_complete=complete_names)
owner_option = click.option(
    "--owner",
    default="",
    shell_complete=complete_owners,
    metavar="OWNER",
    help="The owner of the schedules, such as user:42. Default: the application itself.",
)
owners_option = combined(
    owner_option,
    click.option("--all-owners", is_flag=True, help="Select all owners instead of one."),
)
owner_prefix_option = click.option(
    "--owner-prefix",
    metavar="TEXT",
    help="Select all owners that begin with TEXT, such as org:7/.",
)
actor_option = click.option(
    "--actor",
    envvar="DYNBEAT_ACTOR",
    default=shell_user,
    show_default="the user of this shell",
    metavar="NAME",
    help="Who makes the change, as `dynbeat changes` shows it.",
)
reason_option = click.option(
    "--reason",
    default="",
    metavar="TEXT",
    help="The reason for the change, as `dynbeat changes` shows it.",
)
actor_options = combined(actor_option, reason_option)
edit_options = combined(owner_option, actor_options)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
pace_option = click.option(
    "--per-minute",
    type=Number(least=1, most=MAX_BATCH),
    default=100,
    show_default=True,
    help="The number of runs that beat sends in a minute.",
)
now_option = click.option(
    "--now", is_flag=True, help="Do not wait for the end of the quiet hours of the owner."
)
limit_option = click.option(
    "--limit",
    type=Number(least=1, most=MAX_PAGE_SIZE),
    default=100,
    show_default=True,
    help="The maximum number of rows, up to 1,000.",
)
page_options = combined(
    limit_option,
    click.option(
        "--after",
        metavar="CURSOR",
        help="Show the page after this cursor, which the previous page prints.",
    ),
    click.option("--all", "all_pages", is_flag=True, help="Show all pages."),
)
