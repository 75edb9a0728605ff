"""``dynbeat alerts`` and ``dynbeat test-alert``."""

import click

from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.common.text import MAX_PAGE_SIZE

COLUMNS = (
    Column("id", width=3),
    owner_column(),
    Column("schedule", width=16),
    Column("kind", width=11),
    time_column("opened_at"),
    Column("cause", width=40),
    Column("next_step", optional=True),
    Column("run_id", width=36, optional=True),
    time_column("recovered_at", optional=True),
    time_column("reported_at", optional=True),
)


@command("alerts", columns=COLUMNS, examples=("alerts", "alerts --owner user:42 --all"))
@click.option(
    "--owner", default=None, metavar="OWNER", help="Only alerts of OWNER. Default: all owners."
)
@click.option("--all", "with_recovered", is_flag=True, help="Include alerts that have ended.")
def alerts(invocation: Invocation, *, with_recovered: bool) -> None:
    """List the open alerts, oldest first.

    Each schedule has at most one alert of each kind. dynbeat_alert_urls turns alerts on.
    """
    calls, only_open = invocation.calls, not with_recovered
    fetched = pages(
        lambda after: calls.alerts(only_open=only_open, limit=MAX_PAGE_SIZE, after=after)
    )
    found = [each for page in fetched for each in page]
    invocation.show(COLUMNS, found, hidden=() if with_recovered else ("recovered_at",))
    if not found and not invocation.dynbeat.context.settings.alerts_enabled:
        invocation.output.note("alerts are off: set dynbeat_alert_urls")


@command(
    "test-alert",
    examples=("test-alert",),
    exit_statuses="0: each URL accepted the message. 1: a URL refused it, or there is no URL."
    " 2: the command line is invalid.",
)
def test_alert(invocation: Invocation) -> None:
    """Send a test message to each URL of dynbeat_alert_urls.

    Because URLs contain passwords, the command prints only the position of a URL in the setting.
    """
    # Late imports: the help and the list of alerts need nothing that sends messages.
    from celery_dynbeat.alerts.digest import Digest  # noqa: PLC0415
    from celery_dynbeat.alerts.sending import deliver  # noqa: PLC0415

    settings = invocation.dynbeat.context.settings
    urls = settings.alert_urls
    if not urls:
        invocation.refuse("dynbeat_alert_urls has no URL")
    prefix = f"[{settings.application}] " if settings.application else ""
    message = Digest(
        title=f"{prefix}test alert",
        body="A test message of `dynbeat test-alert`. No schedule has failed.",
        type="info",
        fields={"application": settings.application, "total": 0, "alerts": []},
    )
    refused = []
    for number, url in enumerate(urls, start=1):
        error = deliver(url, message, settings.alert_timeout)
        if error is not None:
            refused.append(f"URL {number}: {error}")
    if refused:
        invocation.refuse(f"{len(refused)} of {len(urls)} URLs refused: {'; '.join(refused)}")
    invocation.output.done(
        f"{len(urls)} of {len(urls)} URLs accepted the message",
        {"ok": True, "accepted": len(urls)},
    )
