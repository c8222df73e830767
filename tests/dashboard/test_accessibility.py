"""Everyone can read and use the pages: axe finds nothing serious, and nothing needs a mouse."""

import pytest
from axe_playwright_python.sync_playwright import Axe

# Pages, and what is there when all of them is.
PAGES = {
    "runs": ("/", "main tbody tr"),
    "run": ("/runs/resnet50", ".ag-row a"),
    "uncertain": ("/runs/imagenet", ".ag-row a"),
    "trial": ("/runs/resnet50/trials/4", "#plan-values table"),
    "compare": ("/compare?trials=1.1,1.2", "main table"),
    "query": ("/query?sql=SELECT%201", "#ask"),
}
SERIOUS = {"serious", "critical"}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(h200_address, open_page, name, scheme):
    """Contrast, names of controls, order of headings and the like."""
    path, there = PAGES[name]
    page = open_page(h200_address + path, color_scheme=scheme)
    page.locator(there).first.wait_for()
    found = Axe().run(page).response["violations"]
    serious = {
        (problem["id"], node["html"][:200], str(node["any"])[:300])
        for problem in found
        if problem["impact"] in SERIOUS
        for node in problem["nodes"]
    }
    assert serious == set()
