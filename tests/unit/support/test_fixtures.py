import sqlite3

import pytest

from tests.support import fixtures
from tests.support.databases import is_write_lock_free, new_sqlite_database
from tests.support.servers import RedisServer, ServerMissingError


class MissingServer(RedisServer):
    def find_programs(self):
        raise ServerMissingError(program="redis-server", fix="apt-get install redis-server")


def start_missing():
    return next(fixtures.given_or_started("DYNBEAT_TEST_NO_SUCH_URL", MissingServer))


def test_a_missing_server_skips_the_test_on_a_developers_machine(monkeypatch):
    monkeypatch.delenv("CI", raising=False)

    with pytest.raises(pytest.skip.Exception, match="apt-get install redis-server"):
        start_missing()


def test_a_missing_server_fails_the_test_in_continuous_integration(monkeypatch):
    monkeypatch.setenv("CI", "true")

    with pytest.raises(pytest.fail.Exception, match="apt-get install redis-server"):
        start_missing()


def test_a_server_of_the_environment_is_used(monkeypatch):
    monkeypatch.setenv("DYNBEAT_TEST_NO_SUCH_URL", "redis://elsewhere/3")

    assert start_missing().url == "redis://elsewhere/3"


def test_is_write_lock_free_detects_an_open_transaction(tmp_path):
    with new_sqlite_database(tmp_path) as url:
        file = tmp_path / url.rpartition("/")[2]
        writer = sqlite3.connect(file, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")

        assert not is_write_lock_free(file)

        writer.close()
        assert is_write_lock_free(file)
