"""Keep what the search expected of a trial before it ran."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Add the columns."""
    for name in ("expected_throughput", "chance_of_gain", "expected_s"):
        op.add_column("trials", sa.Column(name, sa.Double()))
