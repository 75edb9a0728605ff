"""The page of one schedule, its charts, and skips."""

import re
from datetime import date, timedelta
from html import unescape
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest

from celery_dynbeat import Cron, Every
from celery_dynbeat.flower.actions import encode
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, START, execute, instants

HOSTILE = '"><script>alert(1)</script>\u202e'
MINUTE = timedelta(minutes=1)
DAILY = Cron("0 9 * * *", timezone="Asia/Seoul")


def url(name="n", owner="user:42", page="schedule", **query):
    return f"/dynbeat/{page}?{urlencode({'owner': owner, 'name': name, **query})}"


def test_the_page_shows_rule_why_and_next_fire_times(mine, pages):
    mine.create("n", task="t", trigger=DAILY, tags=["vip"], queue="mail")

    text = pages.get(url()).text

    assert "At 09:00 every day, Asia/Seoul" in unescape(text)
    assert "<strong>Why:</strong>" in text
    assert text.count('datetime="2026-11-22T00:00:00+00:00"') == 1
    assert "mail" in text
    assert "overlap" in text


def test_the_page_shows_finish_within_and_only_the_host_of_the_ping_url(dynbeat, mine, pages):
    mine.create("n", task="t", trigger=DAILY, finish_within=120)
    execute(dynbeat, "UPDATE dynbeat_schedule SET ping_url = 'https://hc-ping.com/5f0c-token'")

    text = pages.get(url()).text

    assert "<dt>finish_within</dt><dd>2 min</dd>" in text
    assert "<dt>ping_url</dt><dd>https://hc-ping.com/...</dd>" in text
    assert "5f0c-token" not in text


def test_the_page_names_the_calendars_and_what_they_take(dynbeat, mine, pages):
    dynbeat.calendars.upsert("holidays", dates=[date(2026, 11, 23)])
    mine.create("n", task="t", trigger=DAILY.excluding(calendar="holidays"))
    mine.create("m", task="t", trigger=DAILY.on_business_day("next", calendar="holidays"))

    text = unescape(pages.get(url()).text)

    assert '<dt>Calendars</dt><dd><a href="/dynbeat/calendar?name=holidays">holidays</a>' in text
    taken = text.partition('datetime="2026-11-23T00:00:00+00:00"')[2].partition("</tr>")[0]
    assert "calendar holidays" in taken
    assert "Unskip" not in taken
    moved = unescape(pages.get(url("m")).text)
    assert "calendar holidays: moves to 2026-11-24 09:00 (Asia/Seoul)" in moved
    for name in ("n", "m"):
        assert "holidays" in pages.get(url(name, page="edit")).text


def test_the_page_names_the_quiet_hours_of_the_owner(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    assert "Quiet hours" not in pages.get(url()).text

    mine.set_timezone("Asia/Seoul")
    mine.set_quiet_hours(["22:00-07:00"])

    text = "22:00-07:00 on the clock of Asia/Seoul"
    assert f"<dt>Quiet hours</dt><dd>{text}</dd>" in pages.get(url()).text


def test_a_rule_that_follows_no_clock_shows_no_time_zone(mine, pages):
    mine.create("n", task="t", trigger=Every(300))

    assert "none: the rule follows no clock" in pages.get(url()).text


def test_the_pages_show_the_error_of_damaged_quiet_hours(dynbeat, mine, pages):
    mine.set_timezone("UTC")
    mine.create("n", task="t", trigger=DAILY)
    damaged = "UPDATE dynbeat_owner SET quiet_hours = :value"
    execute(dynbeat, damaged, value='{"windows": "x"}')

    for path in (url(), "/dynbeat/owner?owner=user%3A42"):
        text = unescape(pages.get(path).text)
        shown = text.partition("<dt>Quiet hours</dt><dd>")[2].partition("</dd>")[0]
        assert shown.endswith("is not what set_quiet_hours() writes; set it again")


def test_the_page_shows_the_end_of_a_pause(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    assert "Paused until" not in pages.get(url()).text

    mine.pause("n", until=START + timedelta(hours=2))

    text = pages.get(url()).text
    assert "<dt>Paused until</dt>" in text
    assert 'datetime="2026-11-21T11:00:00+00:00"' in text


def test_the_page_shows_the_retry_policy(mine, pages):
    mine.create(
        "n",
        task="t",
        trigger=MINUTELY,
        retry={"max_retries": 3, "backoff": 300, "backoff_max": 600},
    )

    text = pages.get(url()).text

    assert "max_retries=3, backoff=5m, factor=2, backoff_max=10m" in text


def test_fire_times_are_in_the_zone_of_the_schedule_and_of_the_viewer(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    pages.cookies["dynbeat_viewer_zone"] = "America%2FNew_York"

    text = pages.get(url(zone="owner")).text

    assert "Sun 22 Nov 09:00:00 +09" in text
    assert '<td class="db-nowrap">19:00</td>' in text


def test_each_action_has_a_separate_button(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    assert ">Pause</button>" in pages.get(url()).text
    assert ">Resume</button>" not in pages.get(url()).text

    mine.pause("n", reason=HOSTILE)

    text = pages.get(url()).text
    assert ">Resume</button>" in text
    assert ">Pause</button>" not in text
    assert "<script>alert" not in text


def test_a_pause_of_an_outdated_page_is_refused(mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    version = mine.get("n").version
    mine.update("n", description="changed by someone else")
    form = {"schedule": encode("user:42", "n"), "version": version, "next": url()}

    pages.post("/dynbeat/pause", form)

    assert mine.get("n").enabled
    assert "db-message" in pages.get(url()).text


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


@pytest.mark.parametrize("given", ["", "tomorrow", "2026-11-22T00:00:01+00:00"])
def test_a_wrong_fire_time_is_an_error(mine, pages, given):
    mine.create("n", task="t", trigger=DAILY)
    form = {"schedule": encode("user:42", "n"), "fire_at": given, "next": url()}

    pages.post("/dynbeat/unskip", form)

    assert "alert-danger" in pages.get(url()).text


def test_a_held_owner_is_named_with_a_button_to_release_it(dynbeat, mine, pages):
    mine.create("n", task="t", trigger=DAILY)
    with dynbeat.acting(actor="bob"):
        mine.hold(reason="incident 7")

    text = unescape(pages.get(url()).text)

    assert "by bob: “incident 7”" in text
    assert ">Release owner</button>" in text


def test_the_history_has_pages(dynbeat, mine, clock, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(30):
        clock.advance(MINUTE)
        ManualBeat(dynbeat).run_until_idle()

    text = pages.get(url()).text

    assert text.count("data-row-link") == 25
    following = next(each for each in text.split("<a ") if 'rel="next"' in each.partition(">")[0])
    second = pages.get(unescape(following.split('href="')[1].partition('"')[0])).text
    assert second.count("data-row-link") == 5


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


def test_the_time_of_the_charts_is_chosen_in_the_url(mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    chosen = {"calendar": "failed", "range": "7d", "zone": "UTC"}

    page = unescape(pages.get(url(**chosen)).text)
    charts = unescape(pages.get(url(page="schedule_charts", **chosen)).text)

    fragment = re.search('data-fragment="([^"]*schedule_charts[^"]*)"', page)[1]
    assert dict(parse_qsl(urlsplit(fragment).query)).items() >= chosen.items()
    assert "Duration, 7 days" in charts
    [*links] = re.findall('href="([^"]*)#db-charts"', charts)
    queries = [dict(parse_qsl(urlsplit(each).query)) for each in links]
    assert [each["range"] for each in queries] == ["7d", *["1h", "24h", "30d"] * 2]
    assert [each.get("calendar") for each in queries] == [None, *["failed"] * 6]
    unknown = pages.get(url(page="schedule_charts", range="1y")).text
    assert "Lag, 24 hours" in unknown


def test_nothing_can_be_changed_in_read_only_mode(mine, serve):
    mine.create("n", task="t", trigger=DAILY)

    assert '<form method="post"' not in serve().get(url()).text


def test_a_schedule_whose_options_cannot_be_read_has_a_page(dynbeat, mine, pages):
    mine.create("n", task="t", trigger=MINUTELY)
    # More digits than Python reads.
    options = f'{{"priority": {"9" * 5_000}}}'
    execute(dynbeat, "UPDATE dynbeat_schedule SET options = :options", options=options)

    assert pages.get(url()).status == 200
    assert pages.get(url(page="edit")).status == 200
