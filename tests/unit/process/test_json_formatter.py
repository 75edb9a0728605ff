"""Each record becomes one line of valid JSON, whatever it contains."""

import json
import logging
import math
import sys
from datetime import UTC, datetime

import pytest
from celery.app import trace
from celery.worker.consumer import consumer

from celery_dynbeat import JsonFormatter

SECRET = "4111-1111"
RUN_ID = "01a1fb67-1800-75e3-be20-78c2d9236be9"


class Hostile:
    """An object whose text raises."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


class HostileDict(dict):
    def items(self):
        raise RuntimeError


def circular():
    value = []
    value.extend([value] * 100)
    return value


def record(msg="text", *args, name="proj.tasks", level=logging.INFO, exc_info=None, **extra):
    made = logging.LogRecord(name, level, __file__, 1, msg, args, exc_info)
    vars(made).update(extra)
    return made


def fail(error):
    raise error


def caught(error):
    """Return the exc_info of an error that was raised."""
    try:
        fail(error)
    except type(error):
        return sys.exc_info()


def no_constant(name):
    pytest.fail(f"{name} is not JSON")


def formatted(made):
    """Return the object of the only line of a record."""
    line = JsonFormatter().format(made)
    assert line.isascii()
    assert len(line.splitlines()) == 1
    # A strict parser rejects lone surrogates, NaN and Infinity.
    parsed = json.loads(line, parse_constant=no_constant)
    json.dumps(parsed, ensure_ascii=False).encode()
    return parsed


def test_a_line_has_the_documented_fields():
    made = record("mail %s sent", 7)
    made.created = 1_795_251_600.5

    found = formatted(made)

    assert found.pop("pid") > 0
    assert found == {
        "time": "2026-11-21T09:00:00.500000Z",
        "level": "INFO",
        "logger": "proj.tasks",
        "process": "MainProcess",
        "message": "mail 7 sent",
    }


@pytest.mark.parametrize(
    "text",
    [
        "a\nb",
        "a\r\n[ERROR] b",
        "\x85\u2028\u2029\x1c",
        "\x00",
        '"}',
        "요약",
        "\ud800x",
        "\U0001f600",
    ],
)
def test_any_text_is_one_line(text):
    shown = text.encode(errors="backslashreplace").decode()

    assert formatted(record("%s", text))["message"] == shown
    assert formatted(record(text))["message"] == shown
    assert formatted(record(note=text))["extra"] == {"note": shown}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (10**5_000, hex(10**5_000)),
        (b"\xff", "b'\\xff'"),
        ({1, 2}, [1, 2]),
        ({("a", 1): None}, {"('a', 1)": None}),
        (datetime(2026, 1, 1, tzinfo=UTC), "2026-01-01T00:00:00+00:00"),
        (Hostile(), "<Hostile without text: RuntimeError>"),
        ([Hostile()], ["<Hostile without text: RuntimeError>"]),
        (HostileDict(a=1), "{'a': 1}"),
        (True, True),
    ],
    ids=[*"abcdefghijk"],
)
def test_any_value_is_json(value, shown):
    assert formatted(record(value=value))["extra"] == {"value": shown}


def test_a_value_of_any_size_becomes_a_short_line():
    nested = [1] * 100
    for _ in range(20):
        # Each level has the level below a hundred times.
        nested = [nested] * 100

    made = record(nested=nested, range=range(10**15), text="kept")
    shown = formatted(made)["extra"]

    assert len(JsonFormatter().format(made)) < 20_000
    assert len(shown["range"]) <= 1_000


def test_a_long_list_does_not_remove_the_fields_after_it():
    shown = formatted(record(values=[0] * 10_000, after="kept"))

    assert len(shown["extra"]["values"]) <= 1_000
    assert shown["extra"]["after"] == "kept"


def test_circular_and_deep_values_are_json():
    deep = []
    for _ in range(100_000):
        deep = [deep]

    assert formatted(record(value=circular()))["message"] == "text"
    assert formatted(record(value=deep))["message"] == "text"


@pytest.mark.parametrize("args", [("x",), (), (1, 2), (Hostile(),)])
def test_a_record_with_wrong_arguments_is_not_lost(args):
    assert formatted(record("count %d", *args))["message"].startswith("count %d")


def test_a_record_that_cannot_be_formatted_is_not_lost():
    made = record("text")
    made.created = "yesterday"

    assert formatted(made)["message"] == "text (record not formatted: TypeError)"


def test_extra_attributes_shadow_no_field():
    shadows = {"time": 1, "level": "x", "event": "schedule_paused", "owner": "o", "run_id": "r"}

    made = record()
    vars(made).update(shadows)

    found = formatted(made)

    assert (found["level"], found["extra"]) == ("INFO", shadows)
    assert not {"event", "owner", "run_id"} & set(found)


def test_records_of_this_package_have_their_fields_at_the_top():
    found = formatted(
        record(name="celery_dynbeat.beat.x", event="run_lost", owner="", attempt=2, worker=None)
    )

    assert (found["event"], found["owner"], found["attempt"]) == ("run_lost", "", 2)
    assert not {"extra", "worker"} & set(found)


def test_an_exception_has_type_message_and_stack():
    found = formatted(record(exc_info=caught(LookupError("no\nrow"))))["exception"]

    assert (found["type"], found["message"]) == ("LookupError", "no\nrow")
    assert found["stack"].startswith("Traceback")


def test_an_exception_without_text_keeps_its_stack():
    class NoTextError(Exception):
        def __str__(self):
            raise RuntimeError

    found = formatted(record(exc_info=caught(NoTextError())))["exception"]

    assert found["message"] == "<NoTextError without text: RuntimeError>"
    assert "raise error" in found["stack"]


@pytest.mark.parametrize("info", [(None, None, None), True, None])
def test_a_record_without_an_exception_has_none(info):
    assert "exception" not in formatted(record(exc_info=info))


@pytest.mark.parametrize(
    "url",
    [
        f"amqp://guest:{SECRET}@host:5672//",
        f"redis://:{SECRET}@host/0",
        f"postgresql+psycopg://u:a@{SECRET}@host/db",
    ],
)
def test_passwords_of_urls_are_masked(url):
    info = caught(OSError(f"no connection to {url}"))
    line = JsonFormatter().format(record("%s", url, exc_info=info, note=[url]))

    assert SECRET not in line
    assert line.count("**@host") == 4


@pytest.mark.parametrize("text", ["http://h:80/a?b=@c", "a: b@c", "see https://h/ and x:y@z"])
def test_other_texts_are_unchanged(text):
    assert formatted(record("%s", text))["message"] == text


def test_formatting_changes_nothing_in_the_record():
    made = record("%s", "x", note=1)
    before = dict(vars(made))
    JsonFormatter().format(made)

    assert vars(made) == before


def celery_record(logger, msg, *args, level=logging.INFO):
    data = args[0] if args and isinstance(args[0], dict) else None
    return record(msg, *args, name=logger, level=level, **({"data": data} if data else {}))


SECRET_DATA = {
    "id": RUN_ID,
    "name": "mail.send",
    "args": f"('{SECRET}',)",
    "kwargs": f"{{'card': '{SECRET}'}}",
    "return_value": f"'{SECRET}'",
    "runtime": 0.25,
    "exc": "ValueError('no')",
    "description": "raised unexpected",
    "traceback": SECRET,
}


@pytest.mark.parametrize(
    ("msg", "shown"),
    [
        (trace.LOG_RECEIVED, f"Task mail.send[{RUN_ID}] received"),
        (trace.LOG_SUCCESS, f"Task mail.send[{RUN_ID}] succeeded in 0.25s: (not logged)"),
        (trace.LOG_FAILURE, f"Task mail.send[{RUN_ID}] raised unexpected: ValueError('no')"),
        ("%(name)s %(args)s %(kwargs)r", "mail.send (not logged) '(not logged)'"),
    ],
)
def test_celerys_records_have_no_arguments_and_results(msg, shown):
    found = formatted(celery_record("celery.app.trace", msg, SECRET_DATA))

    assert found["message"] == shown
    assert SECRET not in str(found)
    assert (found["task"], found["task_id"], found["run_id"]) == ("mail.send", RUN_ID, RUN_ID)


def test_a_task_that_no_schedule_sent_has_no_run_id():
    data = {**SECRET_DATA, "id": "0e8b8b3e-5c77-4f4c-9a32-1d2f0f6e7a11"}

    assert "run_id" not in formatted(celery_record("celery.app.trace", trace.LOG_RECEIVED, data))


@pytest.mark.parametrize(
    ("logger", "msg", "args", "shown"),
    [
        ("celery.worker.consumer.consumer", consumer.UNKNOWN_TASK_ERROR, 4, "unregistered task"),
        ("celery.worker.consumer.consumer", consumer.INVALID_TASK_ERROR, 2, "invalid task message"),
        ("celery.worker.consumer.consumer", consumer.UNKNOWN_FORMAT, 1, "unknown message"),
        ("celery.worker.consumer.consumer", consumer.MESSAGE_DECODE_ERROR, 5, "Can't decode"),
        ("celery.pool", "TaskPool: Apply %s (args:%s kwargs:%s)", 3, "TaskPool: Apply"),
    ],
)
def test_celerys_records_have_no_body_of_a_message(logger, msg, args, shown):
    first = "name" if args > 1 and "decode" not in msg else SECRET
    found = formatted(celery_record(logger, msg, first, *[SECRET] * (args - 1)))

    assert shown in found["message"]
    assert found["message"].endswith("(not logged)")
    assert SECRET not in str(found)


def test_the_arguments_in_an_error_about_an_eta_are_left_out():
    msg = "Couldn't convert ETA %r to timestamp: %r. Task: %r"
    found = formatted(
        celery_record("celery.worker.strategy", msg, "x", ValueError("y"), {"args": SECRET})
    )

    assert found["message"].endswith("ValueError('y'). Task: (not logged)")
