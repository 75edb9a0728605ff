"""An account with a password logs in to MySQL and MariaDB with each driver, without TLS.

MySQL's accounts have caching_sha2_password. Their first login sends the password.
"""

import uuid
from contextlib import contextmanager
from importlib.util import find_spec

import pytest
from sqlalchemy import make_url, text

from celery_dynbeat.db.engine import Database
from tests.support.databases import administration

needs_mysqlclient = pytest.mark.skipif(
    find_spec("MySQLdb") is None, reason="mysqlclient is not installed"
)


@pytest.fixture
def login_url(mariadb_server, mariadb_url):
    """Yield the URL of the database with a new account, which has not logged in yet."""
    url, name = make_url(mariadb_url), f"app_{uuid.uuid4().hex[:8]}"
    account = f"{name}@'{url.host}'"
    with administration(mariadb_server.url) as connection:
        connection.execute(text(f"CREATE USER {account} IDENTIFIED BY 'pass word'"))
        connection.execute(text(f"GRANT ALL ON {url.database}.* TO {account}"))
        yield url.set(username=name, password="pass word").render_as_string(hide_password=False)
        connection.execute(text(f"DROP USER {account}"))


@contextmanager
def connected(url):
    database = Database(url)
    yield database
    database.dispose()


@pytest.mark.parametrize("driver", ["pymysql", pytest.param("mysqldb", marks=needs_mysqlclient)])
def test_a_synchronous_driver_logs_in_with_a_password(login_url, driver):
    url = make_url(login_url).set(drivername=f"mysql+{driver}")

    with connected(url.render_as_string(hide_password=False)) as database:
        assert database.read_clock().tzinfo
