"""Whole runs on a replayed machine that several tests look at; each is played once."""

from dataclasses import replace

import pytest

from tests.agent.world import GIB, GPT, GPT_MODEL, GPU, Table, World

SMALL = replace(GPU, device_memory_bytes=40 * GIB)


def played(table: Table) -> Table:
    """Return the table after a whole run on it."""
    table.search().run()
    return table


@pytest.fixture(scope="session")
def gpt_run():
    """A finished run of ten minutes on the GPT."""
    return played(Table(World(GPT_MODEL), GPT, budget_s=600))
