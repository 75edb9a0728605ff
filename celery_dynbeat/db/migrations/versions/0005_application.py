"""Add the application that the tables belong to.

Revision: 0005
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.functions import utc_now
from celery_dynbeat.db.types import ExactText, UtcDateTime

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "dynbeat_application",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("name", ExactText(255), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), server_default=utc_now(), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_dynbeat_application_one_row")),
        sa.CheckConstraint("name <> ''", name=op.f("ck_dynbeat_application_name_given")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dynbeat_application")),
        mariadb_charset="utf8mb4",
        mysql_charset="utf8mb4",
    )


def downgrade() -> None:
    op.drop_table("dynbeat_application")
