"""Keep what part of its time a script does something else than training."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Add the column; it is unknown for trials that ran before."""
    op.add_column("trials", sa.Column("other_work_share", sa.Double()))
