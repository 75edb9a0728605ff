"""The page of one schedule, its charts, and skips."""

import re
from datetime import timedelta
from html import unescape
from urllib.parse import urlencode

from celery_dynbeat import Cron
from celery_dynbeat.flower.actions import encode
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute, instants

HOSTILE = '"><script>alert(1)</script>\u202e'
MINUTE = timedelta(minutes=1)
DAILY = Cron("0 9 * * *", timezone="Asia/Seoul")


def url(name="n", owner="user:42", page="schedule", **query):
    return f"/dynbeat/{page}?{urlencode({'owner': owner, 'name': name, **query})}"


def test_each_action_has_a_separate_button(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    assert ">Pause</button>" in pages.get(url()).text
    assert ">Resume</button>" not in pages.get(url()).text

    mine.pause("n", reason=HOSTILE)

    text = pages.get(url()).text
    assert ">Resume</button>" in text
    assert ">Pause</button>" not in text
    assert "<script>alert" not in text


def test_a_fire_time_is_skipped_and_runs_again(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    key = encode("user:42", "n")
    form = {"schedule": key, "fire_at": "2026-11-23T00:00:00+00:00", "next": url()}

    pages.post("/dynbeat/skip_next", form)
    text = pages.get(url()).text
    assert "Unskip" in text
    assert "alice" in text
    pages.post("/dynbeat/unskip", form)

    assert "Unskip" not in pages.get(url()).text
    assert [each.isoformat() for each in instants(mine.upcoming("n", count=2))] == [
        "2026-11-22T00:00:00+00:00",
        "2026-11-23T00:00:00+00:00",
    ]


def test_changes_show_the_fields_before_and_after(dynbeat, mine, pages):
    mine.create("n", task="t", trigger=Cron("0 8 * * *"), kwargs={"key": "hunter2"})
    with dynbeat.acting(actor="bob", reason=HOSTILE):
        mine.update("n", trigger=Cron("0 9 * * *"))

    text = pages.get(url()).text

    assert "At 08:00" in text
    assert "<strong>bob</strong> update" in text
    assert "<script>alert" not in text


def test_arguments_are_hidden_on_request(mine, serve):
    mine.create("n", task="t", trigger=DAILY, kwargs={"key": "hunter2"})
    mine.update("n", kwargs={"key": "hunter3"}, options={"headers": {"token": "hunter4"}})

    text = serve(dynbeat_hide_arguments=True).get(url()).text

    assert "hunter" not in text
    assert "(hidden)" in text


def test_hostile_names_are_text(dynbeat, pages):
    mine = dynbeat.schedules.for_owner(HOSTILE)
    mine.create(HOSTILE, task=HOSTILE, trigger=DAILY, description=HOSTILE, tags=[HOSTILE])

    for page in ("schedule", "schedule_charts"):
        answer = pages.get(url(HOSTILE, HOSTILE, page))
        assert answer.status == 200
        assert "<script>alert" not in answer.text
        # A hidden field sends the name back as it is. A browser does not show it.
        assert "\u202e" not in re.sub(r'type="hidden" [^>]*', "", answer.text)


def test_a_damaged_schedule_has_a_page(dynbeat, mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    execute(
        dynbeat,
        "UPDATE dynbeat_schedule SET trigger_spec = 'x y', error = 'E: <b>', next_run_at = NULL",
    )

    text = pages.get(url()).text

    assert "The stored rule cannot be read." in text
    assert "E: &lt;b&gt;" in text
    assert pages.get(url(page="schedule_charts")).status == 200


def test_an_unknown_schedule_names_similar_ones_and_its_history(dynbeat, mine, clock, pages):
    mine.create("digest", task="t", trigger=MINUTELY)
    assert "Similar names" in pages.get(url("digesd")).text
    clock.advance(MINUTE)
    ManualBeat(dynbeat).run_until_idle()
    mine.delete("digest")

    answer = pages.get(url("digest"))

    assert answer.status == 404
    assert "Its history" in answer.text
    assert pages.get(url("")).status == 400


def test_the_charts_count_days_and_lead_to_their_runs(dynbeat, mine, clock, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(3):
        clock.advance(MINUTE)
        ManualBeat(dynbeat).run_until_idle()

    text = unescape(pages.get(url(page="schedule_charts", zone="UTC")).text)

    assert "Sat 21 Nov 2026: 3 runs" in text
    since, until = START.replace(hour=0), START.replace(hour=0) + timedelta(days=1)
    day = urlencode({"since": since.isoformat(), "until": until.isoformat()})
    assert f"/dynbeat/runs?owner=user%3A42&name=n&{day}" in text
    assert "Lag, 1 hour" in text


def test_the_page_shows_rule_why_and_next_fire_times(mine, pages):
    mine.create("n", task="t", trigger=DAILY, tags=["vip"], queue="mail")

    text = pages.get(url()).text

    assert "At 09:00 every day, Asia/Seoul" in unescape(text)
    assert "<strong>Why:</strong>" in text
    assert text.count('datetime="2026-11-22T00:00:00+00:00"') == 1
    assert "mail" in text
    assert "overlap" in text
