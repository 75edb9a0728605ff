"""Add the newest fire time of a schedule that was skipped by a call.

Revision: 0011
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import UtcDateTime

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_schedule", sa.Column("skipped_until", UtcDateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_schedule", "skipped_until")
