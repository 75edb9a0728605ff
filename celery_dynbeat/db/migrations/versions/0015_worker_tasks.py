"""Add the queues and the tasks of a worker.

Revision: 0015
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("dynbeat_node", sa.Column("queues", text, nullable=True))
    op.add_column("dynbeat_node", sa.Column("tasks", text, nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_node", "tasks")
    op.drop_column("dynbeat_node", "queues")
