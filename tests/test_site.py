"""The documentation site: what MkDocs makes of docs/, the README and the program."""

import html
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.cli.main import app
from autotune.search_space.knobs import CATALOGUE

REPOSITORY = Path(__file__).parents[1]
DOCS = REPOSITORY / "docs"
LOADED = re.compile(r'<(?:script|img|link)[^>]*? (?:src|href)="?([^" >]+)')
SHOWN = re.compile(r"<text[^>]*>(.*?)</text>")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site; warnings are errors."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=REPOSITORY,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def page(site, name):
    return (site / f"{name}.html").read_text()


def test_every_page_is_built(site):
    """Each file of docs/ is a page, and so are the README and the changes."""
    names = {path.stem for path in DOCS.glob("*.md")} | {"index", "changelog"}
    assert names <= {path.stem for path in site.glob("*.html")}


def test_every_knob_has_a_section(site):
    """A new entry of the catalogue is documented without a word being written twice."""
    shown = page(site, "knobs")
    for knob in CATALOGUE:
        assert re.search(rf'<h3 id="{knob.name}">.*?What it costs', shown, re.DOTALL)
    assert "made here" not in shown


def test_every_option_is_shown(site):
    """The page of commands has what `--help` has."""
    shown = html.unescape(page(site, "commands"))
    for command in typer_commands().values():
        for parameter in command.params:
            assert all(name in shown for name in parameter.opts if name.startswith("--"))


def typer_commands():
    import typer

    return typer.main.get_command(app).commands


def test_the_site_loads_nothing_from_other_servers(site):
    """It can be read without a network."""
    found = {link for file in site.rglob("*.html") for link in LOADED.findall(file.read_text())}
    assert [link for link in found if link.startswith(("http:", "https:", "//"))] == []


def test_the_readme_is_the_first_page(site):
    """The picture is there, and its links lead to the pages."""
    shown = page(site, "index")
    assert 'src="run.svg"' in shown
    assert (site / "run.svg").exists()
    assert 'href="scripts.html"' in shown


def test_the_picture_is_what_the_program_prints(tmp_path):
    """docs/run.svg is drawn again from the stored run; a newer Rich may draw it otherwise."""
    recorded = loaded(DOCS / "recorded_run.py")
    recorded.main(tmp_path / "run.svg")
    assert words(tmp_path / "run.svg") == words(recorded.PICTURE)
    assert "url(http" not in recorded.PICTURE.read_text()


def loaded(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(picture):
    """Return the words that a picture shows."""
    return html.unescape(" ".join(SHOWN.findall(picture.read_text()))).split()
