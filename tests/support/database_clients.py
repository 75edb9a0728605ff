"""The command-line clients with which an administrator executes SQL."""

import os
import subprocess
from pathlib import Path

from sqlalchemy import URL

from tests.support.servers.mysql import MYSQLD_VARIABLE


def execute_in_client(url: URL, sql: str) -> str:
    """Execute ``sql`` and return what the client wrote to stderr. Its first error ends it."""
    if url.get_backend_name() == "postgresql":
        shown = url.set(drivername="postgresql").render_as_string(hide_password=False)
        command = ["psql", "--quiet", "--no-psqlrc", "--set=ON_ERROR_STOP=1", shown]
    else:
        command = [mysql_client(), f"--user={url.username}", f"--password={url.password or ''}"]
        command += [f"--host={url.host}", f"--port={url.port}", f"--database={url.database}"]
    done = subprocess.run(command, input=sql, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stderr


def mysql_client() -> str:
    """Return the client of MariaDB, or of the MySQL of the environment."""
    if not (server := os.environ.get(MYSQLD_VARIABLE)):
        return "mariadb"
    client = Path(server).with_name("mysql")
    return str(client.absolute()) if client.exists() else "mysql"


def offline_url(url: str) -> str:
    """Return the URL with the scheme that tells MariaDB from MySQL without a connection."""
    return url if MYSQLD_VARIABLE in os.environ else url.replace("mysql+", "mariadb+", 1)
