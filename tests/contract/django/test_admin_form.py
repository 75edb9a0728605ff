"""The admin's form has each field of the table, and writes with the API."""

import pytest
from sqlalchemy import make_url

from celery_dynbeat.api.fields import FIELDS
from tests.support.django_admin_form import TEXTS, seen_in_form

pytestmark = pytest.mark.empty_database


@pytest.mark.parametrize("backend", ["sqlite", "postgresql", "mariadb"])
def test_the_form_writes_each_field_with_the_api(request, backend):
    # A ping URL contains a secret.
    assert TEXTS.keys() == {*FIELDS, "rule"} - {"ping_url"}
    url = make_url(request.getfixturevalue(f"{backend}_url"))
    url = url.set(drivername="mysql+pymysql") if backend == "mariadb" else url
    seen = seen_in_form(url.render_as_string(hide_password=False))

    assert seen["created"] is None
    assert seen["shown"] == {name: good for name, (good, _bad) in TEXTS.items()}
    assert seen["audit"] == ["root", "because"]
    assert seen["unchanged"] == [None, 1]
    assert seen["wrong"] == {name: [name] for name in TEXTS}
    assert seen["after errors"] == 1
    assert seen["preview"] == ["At 09:30 every day, Asia/Seoul", 5]
    assert seen["again"] == {"name": ["The name digest is already in use. Choose another name."]}
    assert seen["partial"] == [None, 1]
    assert seen["no version"] == ["version"]
    assert seen["edited"] is None
    assert seen["names"] == ["renamed"]
    assert "changed in the meantime" in seen["stale"][0]
    assert seen["stale"][-1].startswith("root, ")
    # The second save replaces the changes that the first one has named.
    assert seen["taken over"] == [None, "late"]
    assert seen["copied"] == [None, {"countdown": 3, "queue": "mail", "priority": 7}, 2]
    assert seen["actions"] == [
        "1 schedule is paused.",
        "2 schedules are resumed.",
        "1 schedule runs now.",
    ]
    assert seen["german"] == [
        "foo gibt es nicht.",
        "2 Zeitpläne sind pausiert.",
        "2 Zeitpläne sind fortgesetzt.",
    ]
    assert seen["paused"] == ["quiet"]
    assert seen["runs"][0] == "1 run is repeated."
    assert seen["runs"][1].endswith("It has already ended.")
    assert seen["history"] == [True, True]
    assert seen["filters"] == [2, 0, 2, 2, 2]
    # An instant is in the TIME_ZONE of Django, Asia/Seoul.
    assert seen["field"] == ["TriggerField", "PT5M", "2030-01-01T00:00:00Z", "ValidationError"]
    unknown = "The application has no task 'mail.sent'. Its runs fail unless a worker has it."
    assert seen["unknown task"] == [[unknown], [], [], []]
    assert seen["deleted"] == ["root"]
    # Another tenant's schedule is a redirect to the index, as a missing one.
    assert seen["tenant"] == [["owner"], None, ["b"], [302, 302], False]
