"""The admin reads the rows of a page, and changes schedules with the API."""

import pytest

from tests.support.django_admin import seen_in_admin

pytestmark = pytest.mark.empty_database


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_the_admin_reads_pages_and_changes_schedules_with_the_api(request, backend):
    seen = seen_in_admin(request.getfixturevalue(f"{backend}_url"))

    assert set(seen["statuses"]) == {200}
    for sql in seen["queries"]:
        assert "COUNT(" not in sql
        # There is one run: all runs fit on a page.
        assert "LIMIT" in sql or '"id" IN (' in sql or 'FROM "dynbeat_run"' in sql
    # Owner user:3, and names that begin with n0001.
    assert seen["found"] == [429, 10]
    # Escaped, and without arguments.
    assert seen["shown"] == [False, True, False]
    # NUL and a long text find nothing, a lookup is refused, and unknown rows redirect.
    assert seen["hostile"] == [200, 400, 200, 302, 302]
    assert (seen["viewer paused"], seen["root paused"]) == (0, 3)
    assert seen["audit"] == ["root", "pause"]
    assert (seen["left"], seen["page deletes"]) == (2, 403)
    assert seen["anonymous"] == 302
    assert seen["forged"] == 403
