"""Create everything: runs, trials, windows, plans, knobs."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Create the tables in the order of their references."""
    _runs()
    _trials()
    _windows()
    _plans()
    op.create_table(
        "knobs",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("name", "kind", name=op.f("pk_knobs")),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", ID, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("workload_path", sa.Text(), nullable=False),
        sa.Column("workload_hash", sa.Text(), nullable=False),
        sa.Column("hardware", sa.JSON(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("baseline", sa.JSON(), nullable=False),
        sa.Column("budget_s", sa.Double(), nullable=False),
        sa.Column("used_s", sa.Double(), nullable=False),
        sa.Column("driver", sa.Text(), nullable=False),
        sa.Column("created_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("stop_reason", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("name", name=op.f("uq_runs_name")),
    )
    op.create_index("ix_runs_key", "runs", ["key", "state"])


def _trials() -> None:
    op.create_table(
        "trials",
        sa.Column("run_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("purpose", sa.String(32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("started_at", TIME, nullable=False),
        sa.Column("finished_at", TIME),
        sa.Column("log_path", sa.Text()),
        sa.Column("outcome", sa.String(32)),
        sa.Column("phase", sa.String(32)),
        sa.Column("error", sa.Text()),
        sa.Column("user_error", sa.Boolean()),
        sa.Column("requested_bytes", sa.BigInteger()),
        sa.Column("overhead_s", sa.Double()),
        sa.Column("total_s", sa.Double()),
        *_measured(),
        sa.Column("numerics", sa.JSON()),
        sa.Column("traceback", sa.Text()),
        sa.Column("log_tail", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_trials")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_trials_runs")),
    )
    op.create_index("ix_trials_throughput", "trials", ["run_id", "throughput"])
    op.create_index("ix_trials_outcome", "trials", ["run_id", "outcome"])


def _measured() -> list[sa.Column[Any]]:
    numbers = (
        "throughput",
        "throughput_low",
        "throughput_high",
        "step_ms",
        "step_ms_spread",
        "data_wait_share",
        "build_s",
        "first_step_s",
        "warm_up_s",
        "measure_s",
        "first_loss",
        "last_loss",
    )
    counts = (
        "peak_allocated_bytes",
        "peak_reserved_bytes",
        "peak_reserved_overall_bytes",
        "peak_host_bytes",
        "alloc_retries",
    )
    return [
        *(sa.Column(name, sa.Double()) for name in numbers),
        *(sa.Column(name, sa.Boolean()) for name in ("settled", "raced")),
        *(sa.Column(name, sa.BigInteger()) for name in counts),
    ]


def _windows() -> None:
    op.create_table(
        "windows",
        sa.Column("run_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("number", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("position", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("steps", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("data_wait_s", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "number", "position", name=op.f("pk_windows")),
        sa.ForeignKeyConstraint(
            ["run_id", "number"],
            ["trials.run_id", "trials.number"],
            name=op.f("fk_windows_trials"),
            ondelete="CASCADE",
        ),
        sqlite_with_rowid=False,
    )


def _plans() -> None:
    op.create_table(
        "plans",
        sa.Column("run_id", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("kept_baseline", sa.Boolean(), nullable=False),
        sa.Column("confirmed", sa.Boolean(), nullable=False),
        sa.Column("speedup", sa.Double()),
        sa.Column("speedup_low", sa.Double()),
        sa.Column("speedup_high", sa.Double()),
        sa.Column("throughput", sa.Double(), nullable=False),
        sa.Column("baseline_throughput", sa.Double(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger()),
        sa.Column("baseline_memory_bytes", sa.BigInteger()),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("changes", sa.JSON(), nullable=False),
        sa.Column("remarks", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_plans")),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_plans_runs")),
    )
