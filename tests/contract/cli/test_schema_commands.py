"""``dynbeat schema upgrade --sql``."""

import pytest


@pytest.fixture
def database_url(request):
    return request.getfixturevalue("postgresql_url")


def test_all_statements_are_printed_without_a_connection(shown):
    lines = shown("schema", "upgrade", "--sql", "--from", "base")

    assert lines[0] == "BEGIN;"
    assert any(line.startswith("CREATE TABLE dynbeat_schedule ") for line in lines)
    assert lines[-2:] == ["COMMIT;", ""]


def test_the_json_has_the_statements_of_the_next_migration(as_json, next_revision):
    (result,) = as_json("schema", "upgrade", "--sql", "--from", "0001")

    assert result["revision"] == next_revision
    assert "CREATE TABLE dynbeat_colour" in result["sql"]
    assert "CREATE TABLE dynbeat_schedule" not in result["sql"]
