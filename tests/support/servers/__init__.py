"""Servers of our own: each on a free port, in a temporary folder, to be killed at will.

They leave the services of the machine alone, and they end with the process that started them,
however that process ends.
"""

from tests.support.servers.base import Server, ServerFailedError, ServerMissingError
from tests.support.servers.mariadb import MariaDBServer
from tests.support.servers.pgbouncer import PgBouncerServer
from tests.support.servers.postgresql import PostgreSQLServer
from tests.support.servers.rabbitmq import RabbitMQServer
from tests.support.servers.redis import RedisServer
from tests.support.servers.sentinel import ReplicaServer, SentinelServer

__all__ = [
    "MariaDBServer",
    "PgBouncerServer",
    "PostgreSQLServer",
    "RabbitMQServer",
    "RedisServer",
    "ReplicaServer",
    "SentinelServer",
    "Server",
    "ServerFailedError",
    "ServerMissingError",
]
