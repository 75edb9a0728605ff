"""What a notice to an owner says."""

import pytest

from celery_dynbeat.alerts.deliver import WORD_JOINER, render_notices
from celery_dynbeat.alerts.notice_content import Notice, NoticeContent, as_kwargs
from celery_dynbeat.common.alert_kinds import NoticeKind, Severity


def notice(kind=NoticeKind.FAILING, **changes):
    values = {
        "owner": "user:42",
        "schedule": "digest",
        "kind": kind,
        "since": "2026-11-23T03:18:13Z",
        "until": None,
        "next_run": "2026-11-24T00:00:00Z",
        "time_zone": "Asia/Seoul",
        "failures": None,
    }
    return Notice(**values | changes)


def render(*notices, **options):
    return render_notices(NoticeContent(notices=notices), **options)


NEXT = " Next run: 2026-11-24 09:00 (Asia/Seoul)."


@pytest.mark.parametrize(
    ("given", "title", "text"),
    [
        (notice(), "fails", "has been failing since 2026-11-23 12:18 (Asia/Seoul)." + NEXT),
        (notice(next_run=None), "fails", "has been failing since 2026-11-23 12:18 (Asia/Seoul)."),
        (
            notice(until="2026-11-23T03:20:00Z", next_run=None),
            "failed",
            (
                "failed at 2026-11-23 12:18 (Asia/Seoul) and has worked again since"
                " 2026-11-23 12:20 (Asia/Seoul)."
            ),
        ),
        (
            notice(NoticeKind.PAUSED, failures=3, next_run=None),
            "was paused",
            (
                "was paused at 2026-11-23 12:18 (Asia/Seoul), because it failed 3 times in a row."
                " It does not run until you resume it."
            ),
        ),
        (
            notice(NoticeKind.PAUSED, failures=1, next_run=None),
            "was paused",
            (
                "was paused at 2026-11-23 12:18 (Asia/Seoul), because it failed."
                " It does not run until you resume it."
            ),
        ),
        (
            notice(NoticeKind.CANNOT_RUN, next_run=None),
            "cannot run",
            (
                "has not been able to run since 2026-11-23 12:18 (Asia/Seoul)."
                " It does not run until it is changed or resumed."
            ),
        ),
        (
            notice(NoticeKind.WORKS_AGAIN),
            "works again",
            "has worked again since 2026-11-23 12:18 (Asia/Seoul)." + NEXT,
        ),
        (
            notice(NoticeKind.CAN_RUN_AGAIN, time_zone="No/Zone", next_run=None),
            "can run again",
            "has been able to run again since 2026-11-23 03:18 (UTC).",
        ),
    ],
)
def test_each_kind_says_since_when_in_the_zone_of_the_owner(given, title, text):
    assert render(given) == (f"digest {title}", f"digest {text}")
    assert as_kwargs(given)["text"] == f"digest {text}"


def test_many_notices_are_counted_and_some_of_them_shown():
    failing = [notice(schedule=f"n{number}") for number in range(30)]
    title, body = render(*failing, notice(NoticeKind.WORKS_AGAIN))

    assert title == "30 schedules fail, 1 schedule works again"
    assert body.count("\n- n") == 19
    assert body.endswith("\nand 11 more")


def test_a_name_of_a_user_adds_no_line_and_mentions_no_one():
    title, body = render(notice(schedule="@everyone\nhttps://x.example\u202e"))

    assert f"@{WORD_JOINER}everyone" in title
    assert f":{WORD_JOINER}//" in body
    assert "\n" not in f"{title}{body}"
    assert "\n" not in as_kwargs(notice(schedule="a\nb"))["text"]


def test_a_template_of_the_operator_replaces_ours(tmp_path):
    (tmp_path / "owner_title.txt.j2").write_text("{{ summary }}: {{ notices[0].schedule | shown }}")
    title, body = render(notice(), folder=str(tmp_path))

    assert title == "1 schedule fails: digest"
    assert body.startswith("digest has been failing since")


def test_the_content_is_stored_as_json_and_a_recovery_is_milder():
    given = NoticeContent(notices=[notice(), notice(NoticeKind.WORKS_AGAIN)])
    assert NoticeContent.from_json(given.to_json()) == given
    assert given.severity is Severity.ERROR
    assert NoticeContent(notices=[notice(NoticeKind.WORKS_AGAIN)]).severity is Severity.INFO
    # An erasure takes the notices out.
    assert NoticeContent.from_json({}).notices == []
