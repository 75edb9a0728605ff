"""Applications without a broker, for tests that run beat under a frozen clock."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from celery import Celery
from sqlalchemy import Engine, bindparam, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from celery_dynbeat import AsyncDynbeat, Dynbeat, Every, FireTime
from celery_dynbeat.common.clock import Clock
from celery_dynbeat.db.types import UtcDateTime
from celery_dynbeat.testing import FrozenClock

#: A Saturday morning: the start of each test's clock.
START = datetime(2026, 11, 21, 9, tzinfo=UTC)
MINUTELY = Every(60)


@contextlib.contextmanager
def application(
    url: str,
    *,
    main: str | None = "contract",
    clock: Clock | None = None,
    engine: Engine | None = None,
    **settings: Any,
) -> Iterator[Dynbeat]:
    """Yield the Dynbeat of a new Celery application, and close its connections at the end."""
    app = Celery(main, broker="memory://", set_as_current=False)
    app.conf.update(
        dynbeat_database_url=url,
        dynbeat_create_tables=True,
        dynbeat_notifier="polling",
        **{f"dynbeat_{name}": value for name, value in settings.items()},
    )
    dynbeat = Dynbeat(app, clock=clock or FrozenClock(START), engine=engine)
    try:
        yield dynbeat
    finally:
        # Also after a failure: a connection that stays open fails the test that runs then.
        dynbeat.context.database.dispose()


@contextlib.asynccontextmanager
async def async_application(
    url: str,
    *,
    clock: Clock | None = None,
    **settings: Any,
) -> AsyncIterator[AsyncDynbeat]:
    """Yield the AsyncDynbeat of a new application. At the end, no connection may be in use."""
    with application(url, clock=clock, **settings) as dynbeat:
        made = AsyncDynbeat(dynbeat.app, clock=clock or FrozenClock(START))
        try:
            yield made
        finally:
            pool: Any = made.context.database.engine.pool
            await made.dispose()
        assert pool.checkedout() == 0


#: The asynchronous drivers of an application, for its own AsyncEngine.
_ASYNC_DRIVERS = {"postgresql": "psycopg", "mysql": "aiomysql", "sqlite": "aiosqlite"}


@contextlib.asynccontextmanager
async def async_engine(url: str) -> AsyncIterator[AsyncEngine]:
    """Yield an AsyncEngine of the application for a database, and close it at the end."""
    parsed = make_url(url)
    backend = "mysql" if parsed.get_backend_name() == "mariadb" else parsed.get_backend_name()
    parsed = parsed.set(drivername=f"{backend}+{_ASYNC_DRIVERS[backend]}")
    engine = create_async_engine(parsed.difference_update_query(["read_timeout", "write_timeout"]))
    try:
        yield engine
    finally:
        await engine.dispose()


def instants(fire_times: Iterable[FireTime]) -> list[datetime]:
    """Return the instants of what ``upcoming`` returned."""
    return [each.fire_at for each in fire_times]


def execute(dynbeat: Dynbeat, statement: str, **parameters: Any) -> int:
    """Execute a statement without the API, as in a database shell; return its row count."""
    # With a type, SQLAlchemy converts a datetime. The converter of sqlite3 is deprecated.
    instants = [name for name, value in parameters.items() if isinstance(value, datetime)]
    typed = text(statement).bindparams(*(bindparam(name, type_=UtcDateTime()) for name in instants))
    with dynbeat.context.database.engine.begin() as connection:
        return connection.execute(typed, parameters).rowcount
