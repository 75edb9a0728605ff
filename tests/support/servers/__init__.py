"""Servers for tests, each on a free port and in a temporary folder. Tests may kill them.

They do not affect the services of the machine. They end with the process that started them, even
if that process is killed.
"""

from tests.support.servers.base import Server, ServerFailedError, ServerMissingError
from tests.support.servers.mariadb import MariaDBServer
from tests.support.servers.mysql import MySQLServer, mariadb_or_mysql
from tests.support.servers.pgbouncer import PgBouncerServer
from tests.support.servers.postgresql import PostgreSQLServer
from tests.support.servers.rabbitmq import RabbitMQServer
from tests.support.servers.redis import RedisServer
from tests.support.servers.redis_cluster import ClusterServer
from tests.support.servers.sentinel import ReplicaServer, SentinelServer

__all__ = [
    "ClusterServer",
    "MariaDBServer",
    "MySQLServer",
    "PgBouncerServer",
    "PostgreSQLServer",
    "RabbitMQServer",
    "RedisServer",
    "ReplicaServer",
    "SentinelServer",
    "Server",
    "ServerFailedError",
    "ServerMissingError",
    "mariadb_or_mysql",
]
