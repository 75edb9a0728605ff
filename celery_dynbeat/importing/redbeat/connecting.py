"""Connect to the Redis of RedBeat: a server, a cluster, or the Redis in RedBeat's settings."""

from typing import Any

from celery import Celery

from celery_dynbeat.importing.found import SourceError

#: The scheme of RedBeat for a cluster. redis itself has none.
_CLUSTER_SCHEME = "redis-cluster"
_DEFAULT_NODE = {"host": "localhost", "port": 30001}
#: Options of RedBeat that are not options of the client.
_OWN_OPTIONS = frozenset(
    {
        *("retry_period", "cluster", "startup_nodes"),
        *("sentinels", "service_name", "sentinel_kwargs"),
    }
)
_SENTINEL_SCHEMES = ("redis-sentinel", "sentinel")


def require_redis() -> None:
    """Raise SourceError if the package redis is not installed."""
    try:
        import redis  # noqa: F401, PLC0415
    except ImportError:
        raise SourceError("redis is not installed: install celery-dynbeat[redis]") from None


def client_of(url: str, *, cluster: bool) -> Any:
    """Return the client for a URL. Raises SourceError for one that is not supported."""
    from redis import Redis, RedisCluster  # noqa: PLC0415 - an extra

    scheme, separator, rest = url.partition("://")
    if scheme in _SENTINEL_SCHEMES:
        raise SourceError(
            "the URL of a sentinel names no master: leave the URL out, and set redbeat_redis_url"
            " and redbeat_redis_options, with sentinels and service_name, as for RedBeat"
        )
    if scheme == _CLUSTER_SCHEME:
        cluster, url = True, f"redis{separator}{rest}"
    try:
        return (RedisCluster if cluster else Redis).from_url(url)
    except ValueError as error:
        # The URL is not shown, because it can contain a password.
        raise SourceError(
            "the URL of the source is not one that redis understands: write it like"
            " redis://host:6379/0, rediss://... or redis-cluster://host:6379"
        ) from error


def own_client(app: Celery) -> Any:
    """Return the client of RedBeat's own settings. Raises SourceError without celery-redbeat."""
    try:
        from redbeat.schedulers import ensure_conf, get_redis  # noqa: PLC0415 - not an extra
    except ImportError:
        rule = "without a URL, celery-redbeat must be installed: give the URL of its Redis"
        raise SourceError(rule) from None
    settings = ensure_conf(app)
    options = dict(settings.redbeat_redis_options)
    if str(settings.redis_url).startswith(_CLUSTER_SCHEME) and not options.get("cluster"):
        return _client_of_nodes(options)
    return get_redis(app)


def _client_of_nodes(options: dict[str, Any]) -> Any:
    # RedBeat 2.4.2 gives the nodes to RedisCluster as dicts, which redis 4 and newer reject.
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415 - an extra

    node_class: Any = ClusterNode
    given = options.get("startup_nodes") or [_DEFAULT_NODE]
    try:
        nodes = [node_class(node["host"], int(node["port"])) for node in given]
    except (KeyError, TypeError, ValueError) as error:
        rule = "must be a list of {'host': ..., 'port': ...}"
        raise SourceError(f"redbeat_redis_options['startup_nodes'] {rule}") from error
    others = {key: value for key, value in options.items() if key not in _OWN_OPTIONS}
    return RedisCluster(startup_nodes=nodes, **others)


def advice(error: Exception) -> str:
    """Return what to do about an error of Redis, "" if its text says it."""
    from redis.exceptions import MovedError, RedisClusterException  # noqa: PLC0415 - an extra

    if isinstance(error, MovedError):
        return "; this is a node of a Redis Cluster: write redis-cluster://..., or give --cluster"
    if isinstance(error, RedisClusterException):
        return "; a cluster has only the database 0, and a single server needs no --cluster"
    return ""
