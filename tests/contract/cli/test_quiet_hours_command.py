"""quiet-hours."""

from tests.support.applications import MINUTELY

OWNER = ("--owner", "user:42")


def test_the_command_sets_shows_and_clears_the_windows(shown, as_json, mine):
    mine.create("n", task="t", trigger=MINUTELY)

    (text,) = shown("quiet-hours", *OWNER, "22:00-07:00", "sat,sun 00:00-00:00")
    assert text == "set the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == ["user:42\tafter\t22:00-07:00, sat,sun 00:00-00:00"]
    assert as_json("quiet-hours", *OWNER) == [each.to_dict() for each in mine.quiet_hours()]

    (text,) = shown("quiet-hours", *OWNER, "--clear")
    assert text == "removed the quiet hours of owner 'user:42'; 1 schedule changed"
    assert shown("quiet-hours", *OWNER) == []


def test_a_group_and_the_application_have_windows(shown, dynbeat):
    (text,) = shown("quiet-hours", "--owner", "org:7/", "--policy", "skip", "mon 10:00-11:00")
    assert text == "set the quiet hours of group 'org:7/'; 0 schedules changed"
    assert shown("quiet-hours", "--owner", "org:7/user:1") == ["org:7/\tskip\tmon 10:00-11:00"]
    (text,) = shown("quiet-hours", "10:00-11:00")
    assert text == "set the quiet hours of the application; 0 schedules changed"
    assert [str(each) for each in dynbeat.schedules.for_owner("").quiet_hours()[0].windows] == [
        "10:00-11:00"
    ]


def test_invalid_windows_are_refused(refused):
    status, error = refused("quiet-hours", *OWNER, "22-7")
    assert status in {1, 2}
    assert "such as" in error
    status, error = refused("quiet-hours", *OWNER, "22:00-07:00", "--clear")
    assert status == 2
    assert "not both" in error
