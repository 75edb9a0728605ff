"""Read the entries: the members of the sorted set, and the hash of each.

The set is read by ZSCAN, because beat changes the scores, and so the order, while it runs.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from celery import Celery
from kombu.utils.url import maybe_sanitize_url

from celery_dynbeat.importing.found import SourceError
from celery_dynbeat.importing.redbeat.connecting import advice, client_of, own_client

PAGE_SIZE = 500
DEFAULT_PREFIX = "redbeat:"


class Entry(NamedTuple):
    """The fields of the hash of an entry, as they are stored."""

    key: str
    definition: str
    meta: str | None


class EntryReader:
    """Reads the entries below ``prefix``.

    ``url=None`` means the Redis that RedBeat's own settings of ``app`` name, sentinels and clusters
    included; it needs celery-redbeat. ``cluster`` means that the URL belongs to a cluster. Raises
    SourceError, without the password of the URL.
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

    def _entries(self, keys: Sequence[str | bytes]) -> list[Entry]:
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
        # An extra. A cluster's own errors are no RedisError.
        from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415

        try:
            return work(self._client)
        except (RedisError, RedisClusterException, UnicodeDecodeError) as error:
            raise SourceError(f"{self._shown}: {error}{advice(error)}") from error

    @property
    def _shown(self) -> str:
        url = self._url or self._app.conf.get("redbeat_redis_url") or "RedBeat's Redis"
        return str(maybe_sanitize_url(url))

    @cached_property
    def _client(self) -> Any:
        if self._url is None:
            return own_client(self._app)
        return client_of(self._url, cluster=self._cluster)


def _text(value: Any) -> str:
    # RedBeat's own client decodes responses.
    # Bytes that are not UTF-8 become lone surrogates, which no schedule can have.
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(value)
