"""Keep how long the training takes with a winner, where that is what was looked for."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the columns; older runs looked for throughput."""
    for name in ("train_s", "baseline_train_s", "start_s", "baseline_start_s"):
        op.add_column("plans", sa.Column(name, sa.Double()))
