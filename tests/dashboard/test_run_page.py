"""A run's page over runs of a machine with an H200: what a stranger must be able to answer."""

import json
import re
import urllib.request

import pytest

RESNET50, TRANSLATION, IMAGENET = "/runs/resnet50", "/runs/translation", "/runs/imagenet"


def chart(page, name):
    """Return a chart's words, once it is drawn."""
    page.locator(f"#{name} .main-svg").first.wait_for()
    return " ".join(page.locator(f"#{name} text").all_text_contents())


def data(page, name):
    """Return the traces of a chart as Plotly has them."""
    page.locator(f"#{name} .main-svg").first.wait_for()
    return page.evaluate(f"document.querySelector('#{name} .js-plotly-plot').data")


@pytest.mark.parametrize(
    ("path", "word", "answer", "sure"),
    [
        (RESNET50, "CONFIRMED", "12.18 times as fast as your baseline", "7.99 to 18.56"),
        (IMAGENET, "UNCERTAIN", "2.97 times as fast as your baseline", "interval not known"),
    ],
)
def test_the_verdict_comes_first(h200_address, open_page, keep, path, word, answer, sure):
    """What won, by how much, and whether that is sure."""
    page = open_page(h200_address + path)
    verdict = page.locator("#verdict")
    verdict.wait_for()
    text = verdict.inner_text()
    assert verdict.locator(".mantine-Badge-root").first.inner_text() == word
    assert answer in text
    assert sure in text
    assert "batch_size=" in verdict.locator("code").first.inner_text()
    keep(page, f"verdict-{word.lower()}")


def test_why_is_a_waterfall_from_baseline_to_winner(h200_address, open_page):
    """Each bar begins where the one before it ends; what is within noise says so."""
    page = open_page(h200_address + RESNET50)
    with urllib.request.urlopen(f"{h200_address}/api/v1/runs/resnet50") as answer:
        why = json.load(answer)["why"]
    words = chart(page, "why-chart")
    assert "baseline" in words
    assert "winner" in words
    ends, *shares = data(page, "why-chart")
    reached = ends["x"][0]
    assert reached == pytest.approx(why["baseline"])
    for share, told in zip(shares, why["shares"], strict=True):
        word = "noise" if told["is_noise"] else f"x {told['factor']:.2f}"
        assert share["text"] == [word]
        assert share["base"][0] == pytest.approx(min(reached, reached * told["factor"]))
        reached *= told["factor"]
    assert reached == pytest.approx(ends["x"][1])
    rows = page.locator("section:has(#why-chart) tbody tr")
    assert rows.count() == len(shares)
    row = rows.filter(has_text="memory_format=channels_last")
    row.get_by_role("link", name="trial 2").click()
    page.get_by_role("heading", name="Trial 2").wait_for()


@pytest.mark.parametrize(
    ("path", "first", "last"),
    [
        (RESNET50, "autotune export resnet50 -o plan.yaml", "autotune.apply(plan, workload="),
        (IMAGENET, "autotune run --budget 10m", "autotune exec --plan plan.yaml -- "),
    ],
)
def test_what_to_do_next_is_a_command(h200_address, open_page, path, first, last):
    """The plan file, the lines that train with it, and more time where it is not sure."""
    page = open_page(h200_address + path)
    section = page.locator("section", has=page.get_by_role("heading", name="What to do next"))
    section.wait_for()
    blocks = section.locator("pre").all_inner_texts()
    assert blocks[0].startswith(first)
    assert last in blocks[-1]


def test_a_trial_faster_than_the_winner_is_explained(h200_address, open_page):
    """Else the curve ends higher than the winner without a word why."""
    page = open_page(h200_address + TRANSLATION)
    note = page.locator("#verdict").get_by_text(re.compile("was not measured again: trial 5"))
    note.wait_for()


def test_marks_name_trials_and_have_their_intervals(h200_address, open_page):
    """Baseline and winner have marks of their own; memory begins at 0."""
    page = open_page(h200_address + RESNET50)
    progress = {trace["name"]: trace for trace in data(page, "progress-chart")}
    assert {"highest so far", "baseline", "winner", "trial"} <= set(progress)
    winner = progress["winner"]
    assert "<b>trial 4</b>, winner" in winner["hovertext"][0]
    assert "batch_size=128" in winner["hovertext"][0]
    assert winner["error_y"]["array"][0] > 0
    assert (
        len({trace["marker"]["symbol"] for trace in progress.values() if "marker" in trace}) == 3
    )
    across = page.evaluate(
        "document.querySelector('#trade-off-chart .js-plotly-plot').layout.xaxis.rangemode"
    )
    assert across == "tozero"
    assert {"baseline 199.2", "winner 2,426"} <= set(
        re.findall(r"(?:baseline|winner) [\d.,]+", chart(page, "progress-chart"))
    )


def test_a_name_has_one_colour_in_every_run(h200_address, open_page):
    """Precision bf16 looks the same wherever it is."""
    colours = []
    for path in (RESNET50, TRANSLATION):
        page = open_page(h200_address + path)
        page.locator("#trade-off .scatterlayer").wait_for()
        page.locator("#colour").click()
        page.get_by_role("option", name="precision").click()
        page.locator("#trade-off").get_by_text("precision=bf16").first.wait_for()
        named = {trace["name"]: trace for trace in data(page, "trade-off-chart")}
        colours.append(named["precision=bf16"]["marker"])
    assert colours[0] == colours[1]


def test_few_trials_do_not_tell_what_a_knob_does(h200_address, open_page):
    """And knobs that changed together are not told apart."""
    page = open_page(h200_address + TRANSLATION)
    page.locator("#effects").get_by_text("measured trials cannot tell").wait_for()
    page = open_page(h200_address + RESNET50)
    together = page.locator("#effects").get_by_text("they changed together")
    together.first.wait_for()
    page.locator("#effects").get_by_text("Too few trials to tell: memory_format").wait_for()


def test_all_knobs_are_seen_at_once(h200_address, open_page):
    """A line for each measured trial through the values of its plan."""
    page = open_page(h200_address + RESNET50)
    assert "channels_last" in chart(page, "knob-lines-chart")
    lines = data(page, "knob-lines-chart")
    assert sorted({line["customdata"][0] for line in lines}) == [1, 2, 3, 4, 5, 7, 8]


def test_the_plan_is_compared_with_any_other(h200_address, open_page, keep):
    """With the baseline first, then with a trial, or with the winner of another run."""
    page = open_page(h200_address + RESNET50)
    values = page.locator("#plan-values")
    row = values.get_by_role("row", name=re.compile("^batch_size"))
    row.wait_for()
    page.locator(".ag-row a").first.wait_for()  # the table below moves until it has its rows
    assert row.locator("td").all_inner_texts() == ["batch_size", "128", "64"]
    for option, heading, other in (
        ("trial 2", "Trial 2", "64"),
        ("winner of translation", "Winner of translation", "256"),
    ):
        page.locator("#plan-other").click()
        page.get_by_role("option", name=option, exact=True).click()
        values.get_by_role("columnheader", name=heading).wait_for()
        assert row.locator("td").all_inner_texts() == ["batch_size", "128", other]
    assert not page.get_by_text("# A training plan for").is_visible()
    page.get_by_role("button", name="The whole file").click()
    page.get_by_text("# A training plan for").wait_for()


def test_the_charts_are_there_on_a_phone(h200_address, open_page, keep):
    """Nothing is wider than the screen, and the step's parts are drawn."""
    page = open_page(h200_address + RESNET50, viewport={"width": 390, "height": 844})
    page.locator(".ag-row a").first.wait_for()
    for name in ("why-chart", "progress-chart", "trade-off-chart", "step-chart"):
        page.locator(f"#{name} .main-svg").first.wait_for()
        assert page.locator(f"#{name}").bounding_box()["width"] > 200
    assert page.locator("#step-chart .bars path").count() >= 2
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "run-phone")
