"""Keep what trials on several ranks add: exposed communication, and whether a peer was lost."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; older trials ran on one rank, where both are unknown."""
    op.add_column("trials", sa.Column("exposed_comm_share", sa.Double()))
    op.add_column("trials", sa.Column("peer_lost", sa.Boolean()))
