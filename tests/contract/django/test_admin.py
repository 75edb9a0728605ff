"""The admin reads the rows of a page, and changes schedules with the API."""

import pytest
from sqlalchemy import make_url

from tests.support.django_admin import seen_in_admin

pytestmark = pytest.mark.empty_database


@pytest.mark.parametrize(
    ("backend", "use_tz", "settings"),
    [
        ("sqlite", True, {}),
        ("sqlite", False, {"dynbeat_table_prefix": "billing_"}),
        ("postgresql", True, {"dynbeat_schema": "billing"}),
        ("mariadb", False, {}),
    ],
    ids=["sqlite", "sqlite-without-use-tz", "postgresql-schema", "mariadb-without-use-tz"],
)
def test_the_admin_reads_pages_and_changes_schedules_with_the_api(
    request, backend, use_tz, settings
):
    url = make_url(request.getfixturevalue(f"{backend}_url"))
    url = url.set(drivername="mysql+pymysql") if backend == "mariadb" else url
    seen = seen_in_admin(url.render_as_string(hide_password=False), use_tz=use_tz, **settings)

    assert set(seen["statuses"]) == {200}
    for sql in seen["queries"]:
        assert "COUNT(" not in sql
        # There is one run: all runs fit on a page.
        assert "LIMIT" in sql or "id` IN (" in sql or 'id" IN (' in sql or "run" in sql
    # Page 20 of 60: its keys are the last 50 of 1,000 entries of an index.
    assert seen["rows read"] < 2_500
    # Owner user:3, and names that begin with n0001.
    assert seen["found"] == [429, 10]
    # No run is on two pages, or on none.
    assert seen["tied"] == 1_000
    # Escaped, and without arguments.
    assert seen["shown"] == [False, True, False]
    # NUL, control characters and a long text find nothing, a lookup is refused, and unknown rows
    # redirect.
    assert seen["hostile"] == [200, 200, 400, 200, 302, 302, 400]
    assert (seen["viewer paused"], seen["root paused"]) == (0, 3)
    assert seen["audit"] == ["root", "pause"]
    # The question for 1,000 schedules would be a form that Django refuses.
    assert seen["asked"] == [302, 200]
    assert seen["saved"] == ["NotSupportedError"] * 4
    assert seen["left"] == [[200, 3], [302, 2], [302, 1], [403, 1]]
    assert seen["instants"]
    assert seen["anonymous"] == 302
    assert seen["forged"] == 403
