"""dynbeat_recipient: a function of the operator, checked at its use, and no URL in an error."""

import logging

import pytest

from celery_dynbeat import ConfigurationError
from celery_dynbeat.common import recipients
from celery_dynbeat.common.recipients import NoticeTask, RecipientError
from celery_dynbeat.common.settings import Settings

SECRET = "pa55w0rd"
MAIL = f"mailto://user:{SECRET}@example.com"


def read(value, **values):
    conf = {"dynbeat_recipient": value, **{f"dynbeat_{key}": each for key, each in values.items()}}
    return Settings.read(conf, timezone="UTC")


def mail_of(owner):
    return [f"mailto://{owner}@example.com"]


NOT_CALLABLE = 5


def test_a_recipient_turns_alerts_on():
    assert read(mail_of).alerts_enabled
    assert not read(mail_of, alerts=False).alerts_enabled
    assert not Settings.read({}, timezone="UTC").alerts_enabled


@pytest.mark.parametrize("value", [5, "mail_of", "not a path.x", "", [MAIL], {"default": [MAIL]}])
def test_it_must_be_a_function_or_a_dotted_path(value):
    with pytest.raises(ConfigurationError, match="must be a function") as caught:
        read(value)
    assert "proj.notices.recipient_of" in str(caught.value)


def test_a_dotted_path_is_imported_at_its_first_use():
    found = read(f"{__name__}.mail_of").recipient
    assert found.of("a") == ("mailto://a@example.com",)
    assert repr(found) == repr(read(mail_of).recipient)


@pytest.mark.parametrize(
    ("path", "rule"),
    [
        ("no_such_module.recipient", "cannot be imported"),
        (f"{__name__}.missing", "cannot be imported"),
        (f"{__name__}.NOT_CALLABLE", "must be the path of a function"),
    ],
)
def test_a_wrong_path_is_named(path, rule):
    with pytest.raises(ConfigurationError, match=rule) as caught:
        read(path).recipient.load()
    assert path in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, None),
        ([], None),
        ((), None),
        ([MAIL], (MAIL,)),
        ((MAIL, MAIL), (MAIL, MAIL)),
        ("proj.tell_owner", NoticeTask("proj.tell_owner")),
    ],
)
def test_it_returns_urls_a_task_or_none(answer, expected):
    assert read(lambda _: answer).recipient.of("user:42") == expected


@pytest.mark.parametrize(
    ("answer", "rule"),
    [
        (MAIL, "a URL must be in a list"),
        ("", "must have 1 to 255"),
        ("a\n", "must have 1 to 255"),
        ("t" * 256, "must have 1 to 255"),
        ([SECRET], "item 0 must be an Apprise URL"),
        ([MAIL, 5], "item 1 must be an Apprise URL"),
        ({"default": [MAIL]}, "must be a list of Apprise URLs, or the name of a task, or None"),
        (5, "must be a list"),
        (MAIL.encode(), "must be a list"),
    ],
)
def test_another_value_is_an_error_without_a_url(answer, rule, caplog):
    with pytest.raises(RecipientError, match=rule) as caught:
        read(lambda _: answer).recipient.of("user:42")
    assert SECRET not in f"{caught.value}{caplog.text}"


def test_a_function_that_fails_is_logged_once_a_minute(caplog, monkeypatch):
    instants = [100.0, 159.9, 160.0]
    monkeypatch.setattr(recipients, "monotonic", lambda: instants.pop(0))

    def failing(_owner):
        raise ValueError(MAIL)

    recipient = read(failing).recipient
    with caplog.at_level(logging.INFO):
        while instants:
            with pytest.raises(RecipientError, match="dynbeat_recipient failed: ValueError"):
                recipient.of("user:42")

    assert [(each.event, each.owner) for each in caplog.records] == [
        ("recipient_failed", "user:42")
    ] * 2
    assert SECRET not in caplog.text
