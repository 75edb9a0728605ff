"""Add the outages of a beat: what it cannot publish to.

Revision: 0006
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    op.add_column("dynbeat_node", sa.Column("outages", text, nullable=True))


def downgrade() -> None:
    op.drop_column("dynbeat_node", "outages")
