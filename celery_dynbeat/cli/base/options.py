"""Options that several commands share. Each is a decorator."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from celery_dynbeat.cli.base.invocation import shell_user
from celery_dynbeat.cli.base.parameter_types import Number
from celery_dynbeat.client.queries import MAX_PAGE_SIZE

F = TypeVar("F", bound=Callable[..., Any])


def combined(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds several options, in this order."""

    def decorate(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


owner_option = click.option(
    "--owner",
    default="",
    metavar="OWNER",
    help="The owner of the schedules, such as user:42. Default: the application itself.",
)
owners_option = combined(
    owner_option,
    click.option("--all-owners", is_flag=True, help="All owners, instead of one."),
)
actor_option = click.option(
    "--actor",
    envvar="DYNBEAT_ACTOR",
    default=shell_user,
    show_default="the user of this shell",
    metavar="NAME",
    help="Who makes the change, for `dynbeat changes`.",
)
reason_option = click.option(
    "--reason", default="", metavar="TEXT", help="Why, for `dynbeat changes`."
)
actor_options = combined(actor_option, reason_option)
edit_options = combined(owner_option, actor_options)
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
limit_option = click.option(
    "--limit",
    type=Number(least=1, most=MAX_PAGE_SIZE),
    default=100,
    show_default=True,
    help="The largest number of rows, up to 1,000.",
)
page_options = combined(
    limit_option,
    click.option("--after", metavar="CURSOR", help="The next page. The page before names it."),
    click.option("--all", "all_pages", is_flag=True, help="All pages."),
)
