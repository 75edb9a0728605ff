"""Add the trace context of the edit that made the present version of a schedule.

Revision: 0018
"""

import sqlalchemy as sa
from alembic import op

from celery_dynbeat.db.types import ExactText

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("dynbeat_schedule", sa.Column("traceparent", ExactText(55), nullable=True))
    op.add_column("dynbeat_schedule", sa.Column("traced_version", sa.Integer(), nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_schedule", "traced_version")
    op.drop_column("dynbeat_schedule", "traceparent")
