"""Read the entries: the members of the sorted set, and the hash of each.

The set is read by ZSCAN, because beat changes the scores, and so the order, while it runs.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

from celery import Celery
from kombu.utils.url import maybe_sanitize_url

from celery_dynbeat.importing.found import SourceError

PAGE_SIZE = 500
DEFAULT_PREFIX = "redbeat:"


class Entry(NamedTuple):
    """The fields of the hash of an entry, as they are stored."""

    key: str
    definition: str
    meta: str | None


class EntryReader:
    """Reads the entries below ``prefix``.

    ``url`` None means the Redis that RedBeat's own settings of ``app`` name, sentinels and clusters
    included; it needs celery-redbeat. Raises SourceError, without the password of the URL.
    """

    def __init__(
        self, url: str | None, *, app: Celery, prefix: str | None = None, cluster: bool = False
    ) -> None:
        self._url, self._app, self._cluster = url, app, cluster
        self.prefix = prefix or str(app.conf.get("redbeat_key_prefix", DEFAULT_PREFIX))

    def count(self) -> int:
        """Return the number of entries."""
        return int(self._call(lambda client: client.zcard(self._schedule_key)))

    def pages(self) -> Iterator[list[Entry]]:
        """Yield the entries, each once. Entries without a definition are left out, as by beat."""
        seen: set[str | bytes] = set()
        cursor, first = 0, True
        while first or cursor:
            first = False
            scan = self._scan(cursor)
            cursor, keys = scan
            new = [key for key in dict.fromkeys(keys) if key not in seen]
            seen.update(new)
            if new:
                yield self._entries(new)

    @property
    def _schedule_key(self) -> str:
        return f"{self.prefix}:schedule"

    def _scan(self, cursor: int) -> tuple[int, list[str | bytes]]:
        found, members = self._call(
            lambda client: client.zscan(self._schedule_key, cursor=cursor, count=PAGE_SIZE)
        )
        return int(found), [key for key, _score in members]

    def _entries(self, keys: list[str | bytes]) -> list[Entry]:
        def read(client: Any) -> Any:
            with client.pipeline(transaction=False) as pipe:
                for key in keys:
                    pipe.hmget(key, "definition", "meta")
                return pipe.execute()

        rows = self._call(read)
        return [
            Entry(_text(key), _text(definition), None if meta is None else _text(meta))
            for key, (definition, meta) in zip(keys, rows, strict=True)
            if definition is not None
        ]

    def _call(self, work: Any) -> Any:
        from redis.exceptions import RedisError  # noqa: PLC0415 - _client names a missing package

        try:
            return work(self._client)
        except (RedisError, UnicodeDecodeError) as error:
            raise SourceError(f"{self._shown}: {error}") from error

    @property
    def _shown(self) -> str:
        url = self._url or self._app.conf.get("redbeat_redis_url") or "RedBeat's Redis"
        return str(maybe_sanitize_url(url))

    @cached_property
    def _client(self) -> Any:
        if self._url is None:
            return _own_client(self._app)
        from redis import Redis, RedisCluster  # noqa: PLC0415 - an extra

        client: Any = RedisCluster if self._cluster else Redis
        try:
            return client.from_url(self._url)
        except ValueError as error:
            # The URL can contain a password: it is not shown.
            raise SourceError(
                "the URL of the source is not one that redis understands: write it like"
                " redis://host:6379/0 or rediss://..."
            ) from error


def require_redis() -> None:
    """Raise SourceError if the package redis is not installed."""
    try:
        import redis  # noqa: F401, PLC0415
    except ImportError:
        raise SourceError("redis is not installed: install celery-dynbeat[redis]") from None


def _own_client(app: Celery) -> Any:
    try:
        from redbeat.schedulers import ensure_conf, get_redis  # noqa: PLC0415 - not an extra
    except ImportError:
        rule = "without a URL, celery-redbeat must be installed: give the URL of its Redis"
        raise SourceError(rule) from None
    ensure_conf(app)
    return get_redis(app)


def _text(value: Any) -> str:
    # RedBeat's own client decodes responses.
    # Bytes that are not UTF-8 become lone surrogates, which no schedule can have.
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
