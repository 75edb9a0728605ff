"""Add the index of the open alerts of an owner.

Revision: 0024
"""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

TABLE = "dynbeat_alert"
INDEX = "ix_dynbeat_alert_owner_open"


def upgrade() -> None:
    is_partial = op.get_context().dialect.name in {"sqlite", "postgresql"}
    where = sa.text("recovered_at IS NULL")
    op.create_index(
        INDEX,
        TABLE,
        ["owner", "id"] if is_partial else ["owner", "recovered_at", "id"],
        unique=False,
        postgresql_where=where,
        sqlite_where=where,
    )


def downgrade() -> None:
    op.drop_index(INDEX, TABLE)
