"""The codes of errors, and the sentences for end users."""

import pickle
import re
from pathlib import Path
from string import Formatter

import pytest

from celery_dynbeat import (
    ConflictError,
    InvalidArgumentError,
    InvalidTriggerError,
    LimitError,
    NotFoundError,
    QuietHours,
    Retry,
    ScheduleExistsError,
    Trigger,
)
from celery_dynbeat.api import fields
from celery_dynbeat.api.fields import FIELDS
from celery_dynbeat.api.owner_clock import check_exist
from celery_dynbeat.common.errors import MESSAGES
from celery_dynbeat.common.quiet_rule import QuietRule

SOURCES = Path("celery_dynbeat")


def test_each_sentence_is_short_and_names_no_part_of_the_api():
    for sentence in MESSAGES.values():
        assert len(sentence) <= 100
        assert sentence.endswith(".")
        plain = sentence.format_map({name: "" for _, name, _, _ in Formatter().parse(sentence)})
        assert re.search(r"[_=()`]|dynbeat", plain) is None


def test_each_code_in_the_code_has_a_sentence():
    used = {
        code
        for path in SOURCES.rglob("*.py")
        for code in re.findall(r'code="([a-z_]+)"', path.read_text())
    }
    assert {"held", "stale", "unfinished", "not_allowed", "unknown"} <= used
    assert used <= MESSAGES.keys()


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("61 * * * *", "rule", "This rule cannot be read. Check its minute."),
        ("nonsense", "rule", "This rule cannot be read. Check its spelling."),
        ("TZ=Mars/Base 0 9 * * *", "zone", "Choose a time zone, such as Europe/Berlin."),
    ],
)
def test_an_error_of_a_rule_names_its_part(text, code, sentence):
    with pytest.raises(InvalidTriggerError) as caught:
        Trigger.from_text(text)
    assert (caught.value.code, caught.value.user_message) == (code, sentence)


MISTAKES = {
    "retries": (lambda: Retry(max_retries=-1), "range"),
    "retry": (lambda: Retry.from_json({"max_retries": 1, "tries": 2}), "unknown"),
    "quiet hours": (lambda: QuietHours.from_text("foo"), "type"),
    "quiet week": (lambda: QuietRule.of(["00:00-00:00"], None), "no_time"),
    "option": (lambda: fields.check_options({"quue": "a"}), "unknown"),
    "priority": (lambda: fields.check_option("priority", 999), "range"),
    "calendar": (lambda: check_exist(["h"], {}), "unknown"),
    "window": (lambda: FIELDS["window"].check("900%"), "type"),
}


@pytest.mark.parametrize(("make", "code"), MISTAKES.values(), ids=MISTAKES)
def test_a_usual_mistake_has_a_code(make, code):
    with pytest.raises(InvalidArgumentError) as caught:
        make()
    assert caught.value.code == code
    assert "{" not in caught.value.user_message


@pytest.mark.parametrize(
    "error",
    [
        NotFoundError("run", "r", owner="user:42"),
        ScheduleExistsError(owner="user:42", name="n"),
        ConflictError("m", code="stale", owner="user:42", expected_version=1, version=2),
        LimitError("m", owner="o", used=1, wanted=1, limit=1, setting="s"),
        InvalidArgumentError("m", field="f", code="range", minimum=1, maximum=2),
        ConflictError("m", code="ended"),
    ],
    ids=lambda error: f"{type(error).__name__}-{error.code}",
)
def test_an_error_is_pickled_with_its_facts(error):
    found = pickle.loads(pickle.dumps(error))  # noqa: S301 - of this process

    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
    assert found.user_message == error.user_message


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (NotFoundError("run", "r", owner="user:42"), "This run does not exist."),
        (
            ScheduleExistsError(owner="user:42", name="x" * 255),
            f"The name {'x' * 57}... is already in use. Choose another name.",
        ),
        (
            LimitError("m", owner="o", used=1, wanted=1, limit=1_000, setting="s"),
            "You can have at most 1,000 schedules.",
        ),
        (
            InvalidArgumentError("m", code="choice", choices=("all", "none")),
            "Choose one of these: all, none.",
        ),
        (ConflictError("m", code="ended"), "It has already ended."),
    ],
)
def test_a_sentence_has_the_values(error, sentence):
    assert error.user_message == sentence
