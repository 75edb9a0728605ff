"""Add reruns: the origin, the run that a rerun repeats, and requests for many.

Revision: 0012
"""

import re

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, RunId, UtcDateTime

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

EMPTY_LIST = sa.text("('[]')")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OLD_ORIGINS = "'schedule', 'manual', 'backfill'"
ORIGINS = f"{OLD_ORIGINS}, 'rerun'"


def upgrade() -> None:
    op.add_column("dynbeat_run", sa.Column("rerun_of", RunId(), nullable=True))
    op.add_column("dynbeat_run", sa.Column("nominal_at", UtcDateTime(), nullable=True))
    op.create_index(
        "ix_dynbeat_run_rerun_of",
        "dynbeat_run",
        ["rerun_of"],
        unique=False,
        postgresql_where=sa.text("rerun_of IS NOT NULL"),
        sqlite_where=sa.text("rerun_of IS NOT NULL"),
    )
    _create_rerun()
    _replace_origins(old=OLD_ORIGINS, new=ORIGINS)


def _create_rerun() -> None:
    op.create_table(
        "dynbeat_rerun",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("owner", ExactText(255), nullable=True),
        sa.Column("name", ExactText(255), nullable=True),
        sa.Column("schedule_id", BIG_ID, nullable=True),
        sa.Column("statuses", sa.JSON(), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("until", UtcDateTime(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("made", sa.Integer(), server_default="0", nullable=False),
        sa.Column("left_out", sa.Integer(), server_default="0", nullable=False),
        sa.Column("after_at", UtcDateTime(), nullable=False),
        sa.Column("after_id", RunId(), nullable=False),
        sa.Column("waiting_ids", sa.JSON(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("unfinished_ids", sa.JSON(), server_default=EMPTY_LIST, nullable=False),
        sa.Column("next_run_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("cancelled", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.CheckConstraint("batch_size > 0", name=op.f("ck_dynbeat_rerun_batch_size_positive")),
        sa.CheckConstraint("since <= until", name=op.f("ck_dynbeat_rerun_span_ordered")),
        *map(_json_check, ("statuses", "waiting_ids", "unfinished_ids")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_rerun")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    op.create_index(
        "ix_dynbeat_rerun_next_run_at",
        "dynbeat_rerun",
        ["next_run_at"],
        unique=False,
        postgresql_where=sa.text("next_run_at IS NOT NULL"),
        sqlite_where=sa.text("next_run_at IS NOT NULL"),
    )
    op.create_index("ix_dynbeat_rerun_owner", "dynbeat_rerun", ["owner", "id"], unique=False)


def _json_check(column: str) -> sa.CheckConstraint:
    name = op.f(f"ck_dynbeat_rerun_{column}_json")
    return sa.CheckConstraint(f"json_valid({column})", name=name).ddl_if(dialect="sqlite")


def _replace_origins(*, old: str, new: str) -> None:
    if op.get_context().dialect.name == "sqlite":
        _rebuild_with_origins(old=old, new=new)
        return
    op.drop_constraint(op.f("ck_dynbeat_run_origin_known"), "dynbeat_run", type_="check")
    op.create_check_constraint(
        op.f("ck_dynbeat_run_origin_known"), "dynbeat_run", f"origin IN ({new})"
    )


def _rebuild_with_origins(*, old: str, new: str) -> None:
    """Copy the table: SQLite cannot change a constraint. No other table refers to this one."""
    connection = op.get_bind()
    of_table = "FROM sqlite_master WHERE tbl_name = 'dynbeat_run' AND sql IS NOT NULL"
    create = connection.scalar(sa.text(f"SELECT sql {of_table} AND type = 'table'"))
    indexes = connection.scalars(sa.text(f"SELECT sql {of_table} AND type = 'index'")).all()
    # dynbeat_table_prefix may have changed the name.
    copy = re.sub(r'^CREATE TABLE ("?)(\w+)\1', r"CREATE TABLE \1\2_copy\1", create)
    connection.exec_driver_sql(copy.replace(f"origin IN ({old})", f"origin IN ({new})"))
    connection.exec_driver_sql("INSERT INTO dynbeat_run_copy SELECT * FROM dynbeat_run")
    connection.exec_driver_sql("DROP TABLE dynbeat_run")
    connection.exec_driver_sql("ALTER TABLE dynbeat_run_copy RENAME TO dynbeat_run")
    for index in indexes:
        connection.exec_driver_sql(index)


def downgrade() -> None:
    op.execute("UPDATE dynbeat_run SET origin = 'manual' WHERE origin = 'rerun'")
    _replace_origins(old=ORIGINS, new=OLD_ORIGINS)
    op.drop_table("dynbeat_rerun")
    op.drop_index("ix_dynbeat_run_rerun_of", "dynbeat_run")
    op.drop_column("dynbeat_run", "nominal_at")
    op.drop_column("dynbeat_run", "rerun_of")
