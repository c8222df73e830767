"""Keep why a trial was ended, which older versions told in the text of its error only."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

CAUSES = {
    "the user stopped the run": "user_stopped",
    "the time for searching ended": "search_ended",
    "the budget ended": "budget_ended",
}
"""The errors of trials that were cancelled for want of time or by Ctrl-C."""


def upgrade() -> None:
    """Add the column, and fill it from what the errors say."""
    op.add_column("trials", sa.Column("cause", sa.String(32)))
    trials = sa.table("trials", *map(sa.column, ("outcome", "error", "cause")))
    cancelled, infra = trials.c.outcome == "cancelled", trials.c.outcome == "infra"
    says = trials.c.error.contains
    causes = sa.case(
        (cancelled & trials.c.error.startswith("given up"), "too_slow"),
        *((cancelled & (trials.c.error == text), cause) for text, cause in CAUSES.items()),
        (infra & says("No space left on device") & ~says("shared memory"), "disk_full"),
    )
    op.execute(trials.update().values(cause=causes))
