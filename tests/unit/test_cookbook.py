"""docs/how-to/cookbook.md: the code of each recipe does what the recipe says."""

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery

from celery_dynbeat import Dynbeat, InvalidArgumentError
from celery_dynbeat.testing import FrozenClock, ManualBeat

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "cookbook.md"
#: A Monday.
NINE = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class OwnTasks(Celery):
    """An application whose tasks are not shared with the applications of other tests."""

    def task(self, *args, **options):
        return super().task(*args, **options | {"shared": False})


class Recipe:
    """The code of one section of the page, executed, with a beat and recorded calls."""

    def __init__(self, title, folder):
        self.app = OwnTasks("proj", broker="memory://", set_as_current=False)
        self.app.conf.dynbeat_database_url = f"sqlite:///{folder}/test.sqlite3"
        self.clock = FrozenClock(NINE)
        self.dynbeat = Dynbeat(self.app, clock=self.clock)
        self.calls = []
        self.names = {"__name__": "proj", "app": self.app, "dynbeat": self.dynbeat}
        for function in ("send_mail", "write_index", "close_account", "call_crm"):
            self.names[function] = self._recording(function)
        introduction, *sections = PAGE.read_text().split("\n## ")
        (section,) = [each for each in sections if each.startswith(f"{title}\n")]
        for block in BLOCK.findall(introduction) + BLOCK.findall(section):
            exec(block, self.names)  # noqa: S102 - the page is our own
        self.beat = ManualBeat(self.dynbeat, run_tasks=True)

    def _recording(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))

    def __getitem__(self, name):
        return self.names[name]

    def after(self, duration):
        """Advance the clock, and let beat and the tasks run."""
        self.clock.advance(duration)
        self.beat.run_until_idle()
        calls, self.calls = self.calls, []
        return calls

    def of(self, owner):
        return self.dynbeat.schedules.for_owner(owner)


@pytest.fixture
def recipe(request, tmp_path):
    made = Recipe(request.param, tmp_path)
    yield made
    made.dynbeat.context.database.dispose()


RECIPES = []


def cooks(title):
    RECIPES.append(title)
    return pytest.mark.parametrize("recipe", [title], indirect=True, ids=[""])


@cooks("A digest for each user at 9 in their zone")
def test_a_digest_follows_the_zone_of_its_user(recipe):
    recipe["create_digest"](42, "Asia/Seoul")
    assert recipe.after(14 * HOUR) == []  # 23:00 UTC; 08:00 in Seoul
    assert recipe.after(66 * MINUTE) == [("send_mail", 42, "digest")]

    recipe["user_moved"](42, "Europe/Berlin")
    assert recipe.after(7 * HOUR) == []  # 07:06 UTC; 08:06 in Berlin
    assert recipe.after(HOUR) == [("send_mail", 42, "digest")]


@cooks("Debounce: act once after the last change")
def test_many_changes_are_indexed_once(recipe):
    for _ in range(3):
        recipe["document_changed"](7)
        assert recipe.after(MINUTE) == []

    assert recipe.after(MINUTE) == [("write_index", 7)]
    assert recipe.after(HOUR) == []

    recipe["document_changed"](7)
    assert recipe.after(2 * MINUTE) == [("write_index", 7)]


@cooks("Snooze a reminder")
def test_a_reminder_can_be_snoozed_before_and_after_it_was_sent(recipe):
    recipe["remind"](42, "call", "call Bob", NINE + HOUR)
    assert recipe["snooze"](42, "call", 2 * HOUR) == NINE + 2 * HOUR
    assert recipe.after(HOUR) == []
    assert recipe.after(HOUR) == [("send_mail", 42, "call Bob")]

    recipe["snooze"](42, "call", 10 * MINUTE)
    assert recipe.after(10 * MINUTE) == [("send_mail", 42, "call Bob")]


@cooks("A trial that ends")
def test_a_trial_warns_and_ends(recipe):
    recipe["start_trial"](42, NINE + 14 * DAY)

    assert recipe.after(11 * DAY) == [("send_mail", 42, "your trial ends in three days")]
    assert recipe.after(3 * DAY) == [("close_account", 42)]


@cooks("A trial that ends")
def test_a_user_who_pays_keeps_the_account(recipe):
    recipe["start_trial"](42, NINE + 14 * DAY)
    recipe.after(11 * DAY)
    recipe["user_paid"](42)

    assert recipe.after(30 * DAY) == []
    assert list(recipe.of("user:42").list()) == []


@cooks("Call an API that has a quota")
def test_a_refused_call_is_repeated_when_the_api_says(recipe):
    answers = [recipe["TooManyRequests"](90)]

    def call_crm(account_id):
        recipe.calls.append(account_id)
        if answers:
            raise answers.pop()

    recipe.names["call_crm"] = call_crm
    recipe["create_sync"](7)
    due = recipe.of("account:7").get("sync").next_run_at - NINE

    assert recipe.after(due) == [7]
    (run,) = recipe.of("account:7").runs("sync")
    assert run.status == "retrying"
    assert recipe.after(89) == []
    assert recipe.after(1) == [7]
    (run,) = recipe.of("account:7").runs("sync")
    assert (run.status, run.attempt) == ("succeeded", 2)


@cooks("10,000 reminders at once")
def test_each_participant_gets_one_reminder_within_two_minutes(recipe):
    users = list(range(300))
    recipe["remind_participants"](5, users, NINE + HOUR)
    recipe["event_is_cancelled"](5, [0, 1, 999])

    assert recipe.after(HOUR - MINUTE) == []
    first, second = recipe.after(2 * MINUTE), recipe.after(MINUTE)
    assert first
    assert second
    assert sorted(first + second) == [("send_mail", user, "event 5 begins") for user in users[2:]]
    assert recipe.after(DAY) == []


@cooks("A calendar of public holidays")
def test_no_report_is_sent_on_a_public_holiday(recipe):
    made = recipe["update_holidays"]("DE", (2026, 2027))
    assert made.dates[date(2026, 1, 1)]
    assert recipe["update_holidays"]("DE", (2026, 2027)).version == 1
    recipe["create_report"](42)

    upcoming = recipe.of("user:42").upcoming("report", count=70)
    days = [each.fire_at.date() for each in upcoming]
    assert date(2026, 4, 2) in days
    # Good Friday and Easter Monday.
    assert not {date(2026, 4, 3), date(2026, 4, 6)} & {*days}
    assert date(2026, 4, 7) in days


ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//proj//
BEGIN:VEVENT
UID:1
SUMMARY:Company outing
DTSTART;VALUE=DATE:20260106
DTEND;VALUE=DATE:20260108
END:VEVENT
BEGIN:VEVENT
UID:2
DTSTART:20260109T090000Z
DTEND:20260109T100000Z
END:VEVENT
BEGIN:VEVENT
UID:3
DTSTART;VALUE=DATE:20260112
END:VEVENT
END:VCALENDAR
"""


@cooks("A calendar from an iCalendar file")
def test_the_whole_days_of_a_file_become_dates(recipe):
    assert recipe["put_file"]("outings", ICS).dates == {
        date(2026, 1, 6): "Company outing",
        date(2026, 1, 7): "Company outing",
        date(2026, 1, 12): "",
    }
    with pytest.raises(InvalidArgumentError, match="would have no day"):
        recipe["put_file"]("outings", "BEGIN:VCALENDAR\nEND:VCALENDAR\n")


def test_each_recipe_has_a_test():
    titles = re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)

    assert sorted(set(RECIPES)) == sorted(titles)
