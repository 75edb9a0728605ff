"""Add the audit of edits.

Revision: 0013
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, UtcDateTime

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

INDEXES = {
    "ix_dynbeat_change_changed_at": (),
    "ix_dynbeat_change_owner": ("owner",),
    "ix_dynbeat_change_owner_name": ("owner", "name"),
}
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "dynbeat_change",
        sa.Column("id", BIG_ID, autoincrement=True, nullable=False),
        sa.Column("changed_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.Column("owner", ExactText(255), nullable=True),
        sa.Column("name", ExactText(255), server_default="", nullable=False),
        sa.Column("action", ExactText(32), nullable=False),
        sa.Column("actor", ExactText(255), server_default="", nullable=False),
        sa.Column("reason", ExactText(1024), server_default="", nullable=False),
        sa.Column("old_values", sa.JSON(), nullable=True),
        sa.Column("new_values", sa.JSON(), nullable=True),
        sa.CheckConstraint(
            "old_values IS NULL OR json_valid(old_values)",
            name=op.f("ck_dynbeat_change_old_values_json"),
        ).ddl_if(dialect="sqlite"),
        sa.CheckConstraint(
            "new_values IS NULL OR json_valid(new_values)",
            name=op.f("ck_dynbeat_change_new_values_json"),
        ).ddl_if(dialect="sqlite"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_change")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )
    for name, columns in INDEXES.items():
        op.create_index(name, "dynbeat_change", [*columns, "changed_at", "id"], unique=False)
    is_named = sa.text("actor != ''")
    op.create_index(
        "ix_dynbeat_change_actor",
        "dynbeat_change",
        ["actor", "changed_at", "id"],
        unique=False,
        postgresql_where=is_named,
        sqlite_where=is_named,
    )


def downgrade() -> None:
    op.drop_table("dynbeat_change")
