"""A property of the Redis server on which fault tests depend."""

import redis

from tests.support.servers import RedisServer


def test_redis_restarts_empty(own_server):
    server = own_server(RedisServer)
    with redis.Redis.from_url(server.url) as client:
        client.set("lost", "1")

    server.kill()
    server.start()

    with redis.Redis.from_url(server.url) as client:
        assert client.dbsize() == 0
