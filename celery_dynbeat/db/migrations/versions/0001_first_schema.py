"""Create the tables.

Revision: 0001
"""

from collections.abc import Collection
from typing import Any

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.type_checks import type_checks
from celery_dynbeat.db.types import (
    ExactText,
    Json,
    LongText,
    RunId,
    RunInstant,
    UtcDateTime,
    Window,
    utc_now,
)

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME, KIND, NOTE = ExactText(255), ExactText(16), ExactText(1024)
EMPTY_LIST, EMPTY_OBJECT = sa.text("('[]')"), sa.text("('{}')")
DURATIONS = ("catch_up_window", "expires_after", "finish_within", "max_run_time")
WITH_PARTIAL_INDEXES = ("postgresql", "sqlite")
MYSQL = ("mariadb", "mysql")


def upgrade() -> None:
    _create_schedule()
    _create_run()
    _create_hold_and_change()
    _create_owner_and_application()
    _create_node_and_lock()
    _create_alert()
    _create_rollup()
    _create_calendar()


def downgrade() -> None:
    of_schedules = ("schedule_calendar", "calendar", "hold", "change", "run", "schedule")
    for name in ("rollup", "lock", "alert", "node", "application", "owner", *of_schedules):
        op.drop_table(f"dynbeat_{name}")


def _create(table: str, *items: Any) -> None:
    """Create a table. Constraints without a name get a name by the naming convention."""
    name = f"dynbeat_{table}"
    columns = [item for item in items if isinstance(item, sa.Column)]
    checks = [check for each in columns for check in type_checks(each, table=name)]
    op.create_table(name, *items, *checks, mariadb_charset="utf8mb4", mysql_charset="utf8mb4")


def _id() -> sa.Column[int]:
    return sa.Column("id", BIG_ID, primary_key=True, autoincrement=True)


def _needed(type_: Any, *names: str, default: Any = None) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, server_default=default, nullable=False) for name in names]


def _optional(type_: Any, *names: str) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, nullable=True) for name in names]


def _known(column: str, *values: str) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def _index(
    name: str,
    table: str,
    columns: str,
    *,
    where: str | None = None,
    sqlite_where: str | None = None,
    only_on: Collection[str] = (),
    mysql_length: int | None = None,
) -> None:
    """Create an index of the rows that match ``where``; MySQL indexes all rows.

    SQLite has no columns of type boolean and gets its own text.
    """
    if only_on and op.get_context().dialect.name not in only_on:
        return
    options: dict[str, Any] = {"mysql_length": mysql_length, "mariadb_length": mysql_length}
    if where is not None:
        options["postgresql_where"] = sa.text(where)
        options["sqlite_where"] = sa.text(sqlite_where or where)
    op.create_index(f"ix_dynbeat_{table}_{name}", f"dynbeat_{table}", columns.split(), **options)


def _create_schedule() -> None:
    _create(
        "schedule",
        _id(),
        *_needed(NAME, "owner", default=""),
        *_needed(NAME, "name", "task"),
        *_needed(Json("array"), "args", default=EMPTY_LIST),
        *_needed(Json("object"), "kwargs", "options", default=EMPTY_OBJECT),
        *_needed(ExactText(32), "trigger_kind"),
        *_needed(sa.Text(), "trigger_spec"),
        *_optional(NAME, "hash_name"),
        *_needed(ExactText(64), "timezone", default="UTC"),
        *_needed(sa.Boolean(), "inherits_timezone", default=sa.false()),
        *_optional(sa.Text(), "quiet_hours"),
        *_optional(UtcDateTime(), "anchor_at"),
        *_needed(sa.Boolean(), "enabled", default=sa.true()),
        *_optional(sa.Text(), "paused_reason"),
        *_optional(UtcDateTime(), "paused_until", "start_at", "end_at"),
        *_optional(sa.Integer(), "max_runs"),
        *_needed(sa.BigInteger(), "run_count", default="0"),
        *_optional(KIND, "catch_up"),
        *_optional(sa.Double(), *DURATIONS),
        *_optional(Window(), "window"),
        *_optional(KIND, "overlap", "on_lost"),
        *_optional(sa.Integer(), "pause_after_failures"),
        *_optional(Json("object"), "retry"),
        *_optional(UtcDateTime(), "next_fire_at", "next_run_at", "held_at"),
        *_optional(Json("object"), "skips"),
        *_optional(UtcDateTime(), "last_run_at", "failing_since", "finished_at"),
        *_optional(LongText(), "error"),
        *_needed(NOTE, "description", default=""),
        *_needed(Json("array", is_searched=True), "tags", default=EMPTY_LIST),
        *_optional(sa.Text(), "ping_url"),
        *_needed(KIND, "managed_by", default=""),
        *_needed(sa.Integer(), "version", default="1"),
        *_needed(UtcDateTime(), "created_at", "updated_at", default=utc_now()),
        sa.UniqueConstraint("owner", "name"),
        sa.CheckConstraint("name <> ''", name="name_given"),
        *(
            sa.CheckConstraint(f"{name} >= 0 AND {name} < 1e10", name=f"{name}_in_range")
            for name in DURATIONS
        ),
        _known("catch_up", "latest", "all", "none"),
        _known("overlap", "allow", "skip", "buffer_one", "cancel_previous"),
        _known("on_lost", "record", "rerun"),
        sa.CheckConstraint(
            "next_run_at IS NULL OR (enabled AND finished_at IS NULL AND error IS NULL)",
            name="next_run_only_when_live",
        ),
    )
    for name, where, sqlite_where in (
        ("paused", "NOT enabled", "enabled = 0"),
        ("finished", "finished_at IS NOT NULL", None),
        ("quarantined", "error IS NOT NULL", None),
        ("failing", "failing_since IS NOT NULL", None),
    ):
        _index(
            name,
            "schedule",
            "owner name",
            where=where,
            sqlite_where=sqlite_where,
            only_on=WITH_PARTIAL_INDEXES,
        )
    _index("failing", "schedule", "failing_since", only_on=MYSQL)
    _index("quarantined", "schedule", "error", only_on=MYSQL, mysql_length=1)
    _index("due", "schedule", "next_run_at id", where="next_run_at IS NOT NULL")
    _index("held_at", "schedule", "held_at id", where="held_at IS NOT NULL")
    _index("paused_until", "schedule", "paused_until id", where="paused_until IS NOT NULL")
    _index("name", "schedule", "name owner")
    is_unplanned = "next_run_at IS NULL AND finished_at IS NULL AND error IS NULL"
    _index(
        "unplanned",
        "schedule",
        "enabled finished_at next_run_at",
        where=f"enabled AND {is_unplanned}",
        sqlite_where=f"enabled = 1 AND {is_unplanned}",
    )


def _create_run() -> None:
    _create(
        "run",
        sa.Column("id", RunId(), primary_key=True),
        sa.Column("schedule_id", BIG_ID, _key_of("schedule", "SET NULL"), nullable=True),
        *_needed(NAME, "owner", "name", "task"),
        *_needed(RunInstant(), "fire_at"),
        *_needed(sa.Integer(), "fire_count", default="1"),
        *_needed(KIND, "status"),
        *_needed(KIND, "origin", default="schedule"),
        *_needed(sa.Integer(), "attempt", "retries", "postponements", default="0"),
        *_needed(RunInstant(), "created_at", default=utc_now()),
        *_optional(RunInstant(), "overdue_at"),
        *_optional(NAME, "queue"),
        *_optional(RunInstant(), "sent_at", "started_at", "finished_at"),
        *_optional(KIND, "waited_for"),
        *_optional(RunInstant(), "ready_at"),
        *_optional(NAME, "running_key"),
        *_needed(sa.Boolean(), "ignores_quiet_hours", default=sa.false()),
        *_optional(RunInstant(), "retry_at", "cancelled_at"),
        *_optional(NAME, "worker"),
        *_optional(sa.Integer(), "worker_pid", "redelivered_attempt"),
        *_optional(RunId(), "batch_id", "rerun_of"),
        *_optional(RunInstant(), "nominal_at"),
        *_optional(LongText(), "error", "traceback", "earlier_errors"),
        *_optional(ExactText(500), "note"),
        sa.UniqueConstraint("schedule_id", "fire_at"),
        _known(
            "status",
            *("pending", "sent", "running", "retrying"),
            *("succeeded", "failed", "revoked", "expired", "lost", "skipped"),
        ),
        _known("origin", "schedule", "manual", "backfill", "rerun"),
        sa.CheckConstraint(
            "overdue_at IS NULL OR status IN ('pending', 'sent', 'retrying')",
            name="overdue_only_unstarted",
        ),
    )
    is_failed, is_unfinished = "status IN ('failed', 'lost')", "finished_at IS NULL"
    has_worker = f"worker IS NOT NULL AND {is_unfinished}"
    has_key = f"running_key IS NOT NULL AND {is_unfinished}"
    is_finished = "finished_at IS NOT NULL"
    _index("failed", "run", "id", where=is_failed, only_on=("postgresql",))
    _index("finished_at", "run", "finished_at", where=is_finished, only_on=WITH_PARTIAL_INDEXES)
    _index("newest_unfinished", "run", "finished_at schedule_id id", where=is_unfinished)
    _index("overdue", "run", "overdue_at", where="overdue_at IS NOT NULL")
    _index("owner_fire_at", "run", "owner fire_at")
    _index("place", "run", "status running_key overdue_at id", where=has_key)
    _index("rerun_of", "run", "rerun_of", where="rerun_of IS NOT NULL")
    _index("retry_at", "run", "retry_at", where="retry_at IS NOT NULL")
    _index("worker", "run", "worker finished_at", where=has_worker)


def _key_of(table: str, ondelete: str) -> sa.ForeignKey:
    return sa.ForeignKey(f"dynbeat_{table}.id", ondelete=ondelete)


def _create_hold_and_change() -> None:
    _create(
        "hold",
        _id(),
        *_optional(NAME, "owner"),
        *_optional(sa.Boolean(), "everything"),
        *_needed(NAME, "actor", default=""),
        *_needed(NOTE, "reason", default=""),
        *_needed(UtcDateTime(), "created_at", default=utc_now()),
        *_optional(UtcDateTime(), "until_at"),
        sa.UniqueConstraint("owner"),
        sa.UniqueConstraint("everything"),
    )
    _index("until_at", "hold", "until_at", where="until_at IS NOT NULL")
    _create(
        "change",
        _id(),
        *_needed(UtcDateTime(), "changed_at", default=utc_now()),
        *_optional(NAME, "owner"),
        *_needed(NAME, "name", default=""),
        *_needed(ExactText(32), "action"),
        *_needed(NAME, "actor", default=""),
        *_needed(NOTE, "reason", default=""),
        *_optional(Json("object"), "old_values", "new_values"),
    )
    _index("actor", "change", "actor changed_at id", where="actor != ''")
    _index("changed_at", "change", "changed_at id")
    _index("owner", "change", "owner changed_at id")
    _index("owner_name", "change", "owner name changed_at id")


def _create_owner_and_application() -> None:
    _create(
        "owner",
        sa.Column("owner", NAME, primary_key=True),
        *_optional(ExactText(64), "timezone"),
        *_optional(Json("object"), "quiet_hours"),
    )
    _create(
        "application",
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        *_needed(NAME, "name"),
        *_needed(UtcDateTime(), "recorded_at", default=utc_now()),
        *_optional(ExactText(64), "beat_schedule", "entries_digest"),
        *_optional(KIND, "tz_release"),
        sa.CheckConstraint("id = 1", name="one_row"),
    )


def _create_node_and_lock() -> None:
    _create(
        "node",
        sa.Column("kind", KIND, primary_key=True),
        sa.Column("name", NAME, primary_key=True),
        *_needed(sa.Integer(), "pid"),
        *_needed(UtcDateTime(), "started_at", "seen_at"),
        *_optional(UtcDateTime(), "progressed_at"),
        *_optional(LongText(), "error"),
        *_optional(KIND, "notifier"),
        *_optional(LongText(), "outages"),
        *_optional(sa.Double(), "clock_offset"),
        *_optional(LongText(), "queues", "tasks"),
        *_optional(ExactText(64), "entries_digest"),
        *_optional(UtcDateTime(), "entries_seen_at", "stopped_at"),
        _known("kind", "beat", "worker"),
    )
    _create(
        "lock",
        sa.Column("name", ExactText(32), primary_key=True),
        *_optional(NAME, "leased_by"),
        *_optional(UtcDateTime(), "leased_until", "done_until"),
    )


def _create_alert() -> None:
    _create(
        "alert",
        _id(),
        *_needed(BIG_ID, "schedule_id"),
        *_needed(NAME, "owner", "name", "task"),
        *_needed(KIND, "kind"),
        *_needed(UtcDateTime(), "opened_at"),
        *_needed(LongText(), "cause"),
        *_optional(RunId(), "run_id"),
        *_optional(UtcDateTime(), "recovered_at"),
        *_optional(KIND, "unreported"),
        *_optional(UtcDateTime(), "reported_at"),
        sa.UniqueConstraint("schedule_id", "kind"),
        _known("kind", "stopped", "beats_missing", "workers_missing", "silent", "failing", "late"),
        _known("unreported", "opened", "recovered"),
    )
    _index("recovered_at", "alert", "recovered_at id")
    _index("unreported", "alert", "unreported id", where="unreported IS NOT NULL")
    _index("reported_at", "alert", "reported_at")
    _index("owner", "alert", "owner id")


def _create_rollup() -> None:
    _create(
        "rollup",
        sa.Column("minute", UtcDateTime(), primary_key=True),
        sa.Column("queue", NAME, primary_key=True),
        *_needed(sa.BigInteger(), "sent", "succeeded", "failed", "lost", "other"),
        *_needed(sa.Double(), "lag_seconds", "lag_max"),
        *_needed(Json("object"), "lags"),
        *_needed(sa.Double(), "run_seconds"),
        *_needed(Json("object"), "run_times"),
    )


def _create_calendar() -> None:
    _create(
        "calendar",
        _id(),
        *_needed(ExactText(100), "name"),
        *_needed(LongText(), "dates"),
        *_needed(ExactText(32), "weekend", default="sat,sun"),
        *_needed(sa.Integer(), "version", default="1"),
        *_needed(UtcDateTime(), "created_at", "updated_at", default=utc_now()),
        *_needed(NAME, "updated_by", default=""),
        *_optional(UtcDateTime(), "in_force_at"),
        sa.UniqueConstraint("name"),
    )
    _create(
        "schedule_calendar",
        sa.Column("schedule_id", BIG_ID, _key_of("schedule", "CASCADE"), primary_key=True),
        sa.Column("calendar_id", BIG_ID, _key_of("calendar", "RESTRICT"), primary_key=True),
        *_needed(sa.Integer(), "planned_with"),
    )
    _index("planned", "schedule_calendar", "calendar_id planned_with schedule_id")
