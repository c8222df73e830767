"""Measures how soon a page of the dashboard shows something, and how much it loads for that.

It serves a store with `autotune dashboard`, a fresh server for each repetition, and opens the
address first in headless Chromium with an empty profile, whose network is slowed down.

    python benchmarks/page_weight.py STORE [--path /runs/1] [--mbit 10] [--repeats 5]

Needs `pip install 'torch-autotune[dev]'` and a Chromium (apt-get install chromium).
"""

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from playwright.sync_api import Browser, CDPSession, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.dashboard_speed import served

LATENCY_MS = 20  # of a round trip
# Runs in the browser, and notes in ms since the navigation when the heading, and when the result
# below it, are painted.
NOTE_CONTENT = """
window.seenAt = {};
const wanted = {heading: 'h1', result: '#top .mantine-Paper-root',
  charts: '#trade-off svg, #trade-off .js-plotly-plot svg', table: '.ag-row a'};
new MutationObserver(() => {
  for (const [name, selector] of Object.entries(wanted)) {
    if (name in window.seenAt || !document.querySelector(selector)) continue;
    window.seenAt[name] = -1;
    requestAnimationFrame(() => setTimeout(() => { window.seenAt[name] = performance.now(); }));
  }
}).observe(document, { childList: true, subtree: true });
"""
ALL_SEEN = "() => Object.values(window.seenAt).filter(at => at > 0).length == 4 && window.seenAt"


def load(browser: Browser, address: str, mbit: float) -> dict[str, float]:
    """Return ms until each part of the page is painted, and the kB that were sent for it."""
    context = browser.new_context()
    page = context.new_page()
    session = context.new_cdp_session(page)
    sent = _count_bytes(session)
    _slow_down(session, mbit)
    page.add_init_script(NOTE_CONTENT)
    page.goto(address)
    seen = page.wait_for_function(ALL_SEEN).json_value()
    page.wait_for_load_state("networkidle")
    styled = page.evaluate("getComputedStyle(document.querySelector('header')).position")
    context.close()
    return {**seen, "kB": sum(sent) / 1e3, "with style sheet": float(styled == "sticky")}


def _count_bytes(session: CDPSession) -> list[float]:
    sent: list[float] = []
    session.send("Network.enable")
    session.on("Network.loadingFinished", lambda event: sent.append(event["encodedDataLength"]))
    return sent


def _slow_down(session: CDPSession, mbit: float) -> None:
    rate = mbit * 1e6 / 8
    limits = {"latency": LATENCY_MS, "downloadThroughput": rate, "uploadThroughput": rate}
    session.send("Network.emulateNetworkConditions", {"offline": False, **limits})


def main() -> None:
    """Measure all, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("store", type=Path)
    parser.add_argument("--path", default="/runs/1")
    parser.add_argument("--mbit", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    loads = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(options.repeats):
            with served(options.store) as address:
                loads.append(load(browser, address + options.path, options.mbit))
        browser.close()
    print(f"{'what':20}  median   worst")
    for name in loads[0]:
        values = [found[name] for found in loads]
        print(f"{name:20}  {statistics.median(values):6.0f}  {max(values):6.0f}")


if __name__ == "__main__":
    main()
