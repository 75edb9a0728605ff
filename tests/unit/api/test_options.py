"""Options that no broker accepts are rejected when the schedule is created."""

import pytest

from celery_dynbeat import InvalidArgumentError
from celery_dynbeat.api import fields

#: All headers of a Celery message, and the other request attributes of a worker.
RESERVED = [
    *("lang", "task", "id", "shadow", "eta", "expires", "group", "group_index", "retries"),
    *("timelimit", "root_id", "parent_id", "argsrepr", "kwargsrepr", "origin", "ignore_result"),
    *("replaced_task_nesting", "stamped_headers", "stamps", "compression", "headers", "is_eager"),
    *("called_directly", "delivery_info", "dynbeat_run_id", "dynbeat_new"),
    *("celery_beat_task", "periodic_task_name"),
]

TOO_DEEP = [1]
for _ in range(31):
    TOO_DEEP = [TOO_DEEP]

CIRCULAR: list[object] = []
CIRCULAR.append(CIRCULAR)


def columns(**given):
    return fields.to_columns(given, limit=100_000)


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 256},
        {"priority": -1},
        {"priority": True},
        {"delivery_mode": 3},
        {"queue": ""},
        {"queue": "ü" * 200},
        {"queue": "a\x00b"},
        {"headers": {"k" * 256: 1}},
        {"headers": {"k": [2**63]}},
        {"headers": 1},
        {"countdown": 1e300},
        {"countdown": -5},
        {"time_limit": 0},
        {"serializer": "nope"},
        {"compression": "nope"},
        {"ignore_result": 1},
        {"task_id": "x"},
        {"eta": "2026-11-21T09:00:00Z"},
    ],
    ids=str,
)
def test_an_option_that_no_broker_accepts_is_rejected(options):
    (key,) = options

    with pytest.raises(InvalidArgumentError) as caught:
        columns(options=options)

    assert caught.value.field == f"options[{key!r}]"


@pytest.mark.parametrize("key", RESERVED)
def test_a_reserved_header_is_rejected_with_its_name(key):
    with pytest.raises(InvalidArgumentError, match=f"'{key}': .* choose another name") as caught:
        columns(options={"headers": {"tenant": "blue", key: "x"}})

    assert caught.value.field == "options['headers']"


def test_valid_options_are_stored_unchanged():
    options = {
        "queue": "mail",
        "priority": 9,
        "serializer": "json",
        "delivery_mode": "transient",
        "countdown": 0,
        "time_limit": 30,
        "ignore_result": True,
        "headers": {"tenant": "blue", "n": -1, "Task": "upper and lower case differ"},
    }

    assert columns(options=options) == {"options": options}


@pytest.mark.parametrize("name", ["gzip", "application/x-gzip"])
def test_a_compression_is_accepted_by_its_name_and_its_content_type(name):
    assert columns(options={"compression": name})["options"] == {"compression": name}
