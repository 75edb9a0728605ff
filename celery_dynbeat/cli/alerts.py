"""``dynbeat alerts|ack|snooze|alert-targets|test-alert``: the alerts and their targets."""

from collections.abc import Callable, Sequence

import click
from kombu.exceptions import OperationalError

from celery_dynbeat.alerts.content import Content, Example, instant, only_example
from celery_dynbeat.alerts.delivery import Delivered, DeliveryError, deliver
from celery_dynbeat.alerts.notice_content import Notice, NoticeContent, as_kwargs
from celery_dynbeat.api import AlertInfo, AlertTargetInfo
from celery_dynbeat.api.checks import check_owner
from celery_dynbeat.api.typed_text import TypedInstant
from celery_dynbeat.cli.base.columns import Column, owner_column, time_column
from celery_dynbeat.cli.base.command import command
from celery_dynbeat.cli.base.invocation import Invocation
from celery_dynbeat.cli.base.options import actor_options, combined
from celery_dynbeat.cli.base.pages import pages
from celery_dynbeat.cli.base.parameter_types import Instant, Number
from celery_dynbeat.common.alert_kinds import AlertKind, NoticeKind, Severity, Unsent
from celery_dynbeat.common.errors import InvalidScheduleError
from celery_dynbeat.common.recipients import NoticeTask, RecipientError
from celery_dynbeat.common.settings import DEFAULT_TARGET
from celery_dynbeat.common.text import MAX_PAGE_SIZE

COLUMNS = (
    Column("id", width=3),
    owner_column(),
    Column("schedule", width=16),
    Column("kind", width=11),
    Column("severity", optional=True),
    time_column("opened_at"),
    Column("fact_count", width=10),
    Column("detail", width=24),
    Column("run_id", width=36, optional=True),
    Column("target", optional=True),
    time_column("recovered_at", optional=True),
    Column("acknowledged_by", width=15, optional=True),
    time_column("snoozed_until", optional=True),
    Column("message_status", width=14, optional=True),
    Column("owner_notice", width=12, optional=True),
)


@command(
    "alerts",
    columns=COLUMNS,
    examples=("alerts", "alerts --owner user:42 --all", "alerts --owner org:7/"),
)
@click.option(
    "--owner",
    default=None,
    metavar="OWNER",
    help="Only alerts of OWNER, or of a group such as org:7/. Default: all owners.",
)
@click.option("--all", "with_recovered", is_flag=True, help="Include alerts that have recovered.")
def alerts(invocation: Invocation, *, with_recovered: bool) -> None:
    """List the open alerts, oldest first.

    Each schedule has at most one alert of each kind. The dynbeat_alert_* settings turn alerts on.
    If you omit --owner, a note on stderr names each target whose messages fail. `alert-targets`
    shows the details.
    """
    calls, only_open = invocation.group_calls, not with_recovered
    fetched = pages(
        lambda after: calls.alerts(only_open=only_open, limit=MAX_PAGE_SIZE, after=after)
    )
    found = [each for page in fetched for each in page]
    invocation.show(COLUMNS, found, hidden=() if with_recovered else ("recovered_at",))
    if not found and not invocation.dynbeat.context.settings.alerts_enabled:
        invocation.output.note("alerts are off: set dynbeat_alert_urls")
    if invocation.owner is None:
        _note_undelivered(invocation)


_ids = click.argument("ids", type=Number(least=1, most=2**63 - 1), nargs=-1, required=True)
_scope = combined(
    click.option(
        "--owner", default=None, metavar="OWNER", help="Only an alert of OWNER or a group."
    ),
    actor_options,
)


@command("ack", examples=("ack 17", "ack 17 18 --reason 'the vendor is informed'"), is_list=True)
@_ids
@_scope
def acknowledge(invocation: Invocation, *, ids: tuple[int, ...]) -> None:
    """Acknowledge open alerts, so that no message reports them again.

    `dynbeat alerts` shows the IDS. An acknowledgement ends a snooze of the alert. It lasts until
    the alert recovers, and the recovery is reported.
    """
    _change(invocation, ids, "acknowledged", invocation.group_calls.acknowledge_alert)


@command("snooze", examples=("snooze 17 --until 4h", "snooze 17 --end"), is_list=True)
@_ids
@_scope
@click.option("--until", type=Instant(1), help="When the snooze ends, such as 4h (from now).")
@click.option("--end", is_flag=True, help="End the snooze now.")
def snooze(
    invocation: Invocation, *, ids: tuple[int, ...], until: TypedInstant | None, end: bool
) -> None:
    """Send no messages about open alerts until a given time.

    `dynbeat alerts` shows the IDS. If an alert is still open when the snooze ends, a message
    reports it again. A recovery before that time is not reported. A snooze lasts at most 30 days.
    """
    if end == (until is not None):
        raise click.UsageError("give --until INSTANT or --end", invocation.context)
    at = invocation.instant(until)
    done = "no longer snoozed" if at is None else f"snoozed until {invocation.time(at)}"
    calls = invocation.group_calls
    _change(invocation, ids, done, lambda each: calls.snooze_alert(each, until=at))


def _change(
    invocation: Invocation, ids: tuple[int, ...], done: str, change: Callable[[int], AlertInfo]
) -> None:
    for each in ids:
        info = change(each)
        about = f" of schedule {info.schedule!r}" if info.schedule else ""
        invocation.output.done(f"alert {each}, {info.kind}{about}: {done}", info.to_dict())


@command(
    "test-alert",
    examples=("test-alert", "test-alert billing", "test-alert --owner user:42"),
    exit_statuses="0: each URL accepted the message, or the task was sent. 1: a URL refused the"
    " message, or there is no recipient. 2: the command line is invalid.",
)
@click.argument("target", required=False)
@click.option(
    "--owner",
    default=None,
    metavar="OWNER",
    help="Send a test notice to the recipient of OWNER, which dynbeat_recipient returns.",
)
def test_alert(invocation: Invocation, *, target: str | None) -> None:
    """Send a test message to an alert target or to an owner.

    TARGET is a key of dynbeat_alert_urls. Each of its URLs gets the message of a failed run,
    rendered with your templates. With --owner, the recipient of that owner gets a test notice.
    Because URLs contain passwords, the command prints only the position of a URL in the setting.
    """
    if invocation.owner is not None:
        if target is not None:
            raise click.UsageError("give TARGET or --owner, not both", invocation.context)
        _test_recipient(invocation, invocation.owner)
        return
    settings, target = invocation.dynbeat.context.settings, target or DEFAULT_TARGET
    urls = settings.alert_urls.get(target, ())
    if not urls:
        known = ", ".join(settings.alert_urls) or "none"
        invocation.refuse(f"target {target!r} has no URL; targets of dynbeat_alert_urls: {known}")
    _report(invocation, f"target {target}", {"target": target}, _deliver_example(invocation, urls))


def _test_recipient(invocation: Invocation, owner: str) -> None:
    """Send a notice of a failing schedule to what ``dynbeat_recipient`` returns."""
    context = invocation.dynbeat.context
    if not owner:
        invocation.refuse("the application itself, the owner '', gets no notices")
    try:
        check_owner(owner)
    except InvalidScheduleError as error:
        raise click.UsageError(str(error), invocation.context) from error
    if context.settings.recipient is None:
        invocation.refuse("dynbeat_recipient is not set: owners get no notices")
    try:
        found = context.settings.recipient.of(owner)
    except RecipientError as error:
        invocation.refuse(str(error))
    if found is None:
        invocation.refuse(f"dynbeat_recipient returns None for {owner!r}: it gets no notices")
    notice = Notice(
        owner=owner,
        schedule="test-alert",
        kind=NoticeKind.FAILING,
        since=instant(context.clock.now()) or "",
        until=None,
        next_run=None,
        time_zone=invocation.schedules.for_owner(owner).timezone(),
        failures=None,
    )
    if isinstance(found, NoticeTask):
        kwargs = as_kwargs(notice)
        try:
            context.app.send_task(found.name, kwargs=kwargs, retry=False, ignore_result=True)
        except (OSError, OperationalError) as error:
            problem = f"the broker did not accept task {found.name}: {error}"
            invocation.refuse(f"{problem}; check broker_url, and that the broker runs")
        invocation.output.done(
            f"owner {owner}: task {found.name} was sent",
            {"ok": True, "owner": owner, "task": found.name},
        )
        return
    delivered = _deliver(invocation, NoticeContent(notices=[notice]), found)
    _report(invocation, f"owner {owner}", {"owner": owner}, delivered)


def _report(
    invocation: Invocation, recipient: str, fields: dict[str, str], delivered: Delivered
) -> None:
    """Print how many URLs accepted the message. Refuse if not each of them did."""
    number_of_urls = len(delivered.errors)
    if not invocation.output.as_json:
        # If it had no label, the title "test-alert failed" would read like the result of the
        # command.
        invocation.output.line(f"message: {delivered.title}")
    refused = [
        f"URL {number}: {error}"
        for number, error in enumerate(delivered.errors, start=1)
        if error is not None
    ]
    if refused:
        invocation.refuse(f"{len(refused)} of {number_of_urls} URLs refused: {'; '.join(refused)}")
    invocation.output.done(
        f"{recipient}: {number_of_urls} of {number_of_urls} URLs accepted the message",
        {"ok": True, **fields, "title": delivered.title, "accepted": number_of_urls},
    )


def _deliver_example(invocation: Invocation, urls: Sequence[str]) -> Delivered:
    example = Example(
        owner="",
        name="test-alert",
        task="celery_dynbeat.test",
        since=instant(invocation.dynbeat.context.clock.now()) or "",
        ended=None,
        run_id=None,
        value=None,
        facts=1,
        detail="A test message of `dynbeat test-alert`. No schedule has failed.",
    )
    group = only_example(AlertKind.FAILED, Unsent.OPENED, example)
    return _deliver(invocation, Content(severity=Severity.ERROR, groups=[group]), urls)


def _deliver(
    invocation: Invocation, content: Content | NoticeContent, urls: Sequence[str]
) -> Delivered:
    settings = invocation.dynbeat.context.settings
    is_notice = isinstance(content, NoticeContent)
    try:
        return deliver(
            content,
            urls,
            application=None if is_notice else settings.application,
            flower_url=None if is_notice else settings.flower_url,
            templates=settings.alert_templates,
            timeout=settings.alert_timeout,
        )
    except DeliveryError as error:
        invocation.refuse(str(error))


TARGET_COLUMNS = (
    Column("target", width=12),
    Column("urls", width=4),
    Column("unsent_alerts", width=13),
    Column("waiting"),
    Column("failing"),
    Column("sent"),
    Column("dropped"),
    time_column("last_sent_at", optional=True),
    time_column("next_try_at", optional=True),
    Column("error", width=24),
)


@command(
    "alert-targets", columns=TARGET_COLUMNS, examples=("alert-targets", "alert-targets --json")
)
def alert_targets(invocation: Invocation) -> None:
    """List the alert targets and the states of their messages.

    The command counts the messages that were sent or dropped in the last 7 days. An error contains
    no part of a URL.
    """
    invocation.show(TARGET_COLUMNS, invocation.schedules.alert_targets())


def _note_undelivered(invocation: Invocation) -> None:
    """Print a note on stderr for each target with a message that was not delivered."""
    for each in invocation.schedules.alert_targets():
        if each.failing or each.dropped:
            invocation.output.note(_undelivered(each))


def _undelivered(target: AlertTargetInfo) -> str:
    return (
        f"target {target.target!r}: messages that fail: {target.failing}, dropped in 7 days:"
        f" {target.dropped}; last error: {target.error}"
    )
