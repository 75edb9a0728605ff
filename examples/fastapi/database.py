"""The application's own tables, on the database that also has the schedules."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Depends
from sqlalchemy import String, UniqueConstraint, event, make_url
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from tasks import DATABASE_URL, app

from celery_dynbeat import AsyncDynbeat

_url = make_url(DATABASE_URL)
if _url.get_backend_name() == "sqlite":
    _url = _url.set(drivername="sqlite+aiosqlite")
engine = create_async_engine(_url, pool_pre_ping=True)
sessions = async_sessionmaker(engine, expire_on_commit=False)
dynbeat = AsyncDynbeat(app)

if _url.get_backend_name() == "sqlite":

    @event.listens_for(engine.sync_engine, "connect")
    def _wait_for_writers(connection: Any, _record: Any) -> None:
        # Beat and the worker write to the same file.
        connection.execute("PRAGMA busy_timeout = 30000")


class Base(DeclarativeBase):
    """The declarative base of the example."""


class Reminder(Base):
    """A text that a user wants to receive. The schedule with the same owner and name says when."""

    __tablename__ = "reminder"
    __table_args__ = (UniqueConstraint("user", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    user: Mapped[str] = mapped_column(String(80))
    name: Mapped[str] = mapped_column(String(80))
    kind: Mapped[str] = mapped_column(String(16))
    text: Mapped[str] = mapped_column(String(500))
    created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))


class LoginSession(Base):
    """A session that has not ended. Its cookie has the id."""

    __tablename__ = "login_session"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    user: Mapped[str] = mapped_column(String(80))
    created_at: Mapped[datetime] = mapped_column(default=lambda: datetime.now(UTC))


async def create_tables() -> None:
    """Create the example's own tables."""
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)


async def transaction() -> AsyncIterator[AsyncSession]:
    """Yield the session of one request. It commits at the end, or rolls back after an error."""
    async with sessions() as session, session.begin():
        yield session


#: "function": the commit happens before the response is sent.
Transaction = Annotated[AsyncSession, Depends(transaction, scope="function")]
