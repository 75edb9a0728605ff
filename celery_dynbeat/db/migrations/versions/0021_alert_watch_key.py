"""Drop the foreign key of the watched schedules: its check locks the schedules.

Revision: 0021
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import UtcDateTime

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

TABLE = "dynbeat_alert_watch"
KEY = "fk_dynbeat_alert_watch_schedule_id"
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        _copy()
    else:
        op.drop_constraint(op.f(KEY), TABLE, type_="foreignkey")


def downgrade() -> None:
    op.execute(
        "DELETE FROM dynbeat_alert_watch WHERE schedule_id NOT IN (SELECT id FROM dynbeat_schedule)"
    )
    name, columns = op.f(KEY), (["schedule_id"], ["id"])
    if op.get_context().dialect.name == "sqlite":
        to = ["dynbeat_schedule.id"]
        _copy(sa.ForeignKeyConstraint(columns[0], to, name=name, ondelete="CASCADE"))
    else:
        op.create_foreign_key(name, TABLE, "dynbeat_schedule", *columns, ondelete="CASCADE")


def _copy(*constraints: sa.Constraint) -> None:
    """Copy the table: SQLite cannot change a constraint. No other table refers to this one."""
    copy = f"{TABLE}_copy"
    op.create_table(
        copy,
        sa.Column("schedule_id", BIG_ID, autoincrement=False, nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        *constraints,
        sa.PrimaryKeyConstraint("schedule_id", name=op.f(f"pk_{TABLE}")),
    )
    op.execute(
        "INSERT INTO dynbeat_alert_watch_copy (schedule_id, due_at)"
        " SELECT schedule_id, due_at FROM dynbeat_alert_watch"
    )
    op.drop_table(TABLE)
    op.rename_table(copy, TABLE)
    op.create_index(f"ix_{TABLE}_due_at", TABLE, ["due_at"], unique=False)
