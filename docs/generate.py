"""The parts of the site that are made from the program itself; a hook of MkDocs.

A page asks for a part by a line of its own, such as `<!-- made here: knobs -->`. The site's first
page is the README.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import typer
from fastapi.routing import APIRoute, APIRouter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from autotune import errors
from autotune.cli.main import app
from autotune.dashboard.api import Api
from autotune.search_space.command import Command
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import BY_NAME, CATALOGUE, FAMILIES
from autotune.search_space.knobs.knob import ANY_DEVICE, Effect, Knob, MeasuredOn, Numerics, Out
from autotune.search_space.plan import Plan, Value, spell
from autotune.search_space.site import Site
from autotune.service.routes import JobRoutes

REPOSITORY = Path(__file__).parents[1]
_MADE_HERE = re.compile(r"^<!-- made here: (\w+) -->$", re.MULTILINE)
_COMMENT = re.compile(r"^<!-- .*? -->\n", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")

# A workload to which every knob applies on some machine, and the machines.
_FACTS = WorkloadFacts(
    batch_size=32,
    dataset_len=1_000_000,
    num_parameters=100_000_000,
    num_blocks=12,
    has_conv2d=True,
    optimizer_impls=("foreach", "fused"),
    recordable=True,
    uneven_share=0.5,
    conv_share=0.5,
)
_GPU = Hardware(
    device_kind="cuda",
    device_name="a GPU",
    num_devices=1,
    device_memory_bytes=80 * 2**30,
    capability=(9, 0),
    num_cores=16,
    host_memory_bytes=128 * 2**30,
)
_CPU = replace(_GPU, device_kind="cpu", device_name="a CPU", capability=None)
_ONE_GPU = Site(facts=_FACTS, hardware=_GPU)
_FOUR_GPUS = Site(facts=_FACTS, hardware=replace(_GPU, num_devices=4, num_cores=64), num_ranks=4)
_ON_CPU = Site(facts=_FACTS, hardware=_CPU)
_FIXED_BATCH = Site(facts=replace(_FACTS, global_batch_size=128), hardware=_GPU)
_UNEVEN = Site(facts=replace(_FACTS, uneven_batches=True, length_gain=1.5), hardware=_GPU)
_SITES = (_ONE_GPU, _FOUR_GPUS, _ON_CPU, _FIXED_BATCH, _UNEVEN)
_OLD_GPU = replace(_GPU, capability=(7, 0))
# Machines on which values may be missing, though the knob applies.
_MACHINES = (
    ("On a CPU", replace(_ON_CPU, num_ranks=4)),
    ("On a CPU", _ON_CPU),
    ("On a GPU without bf16", Site(facts=replace(_FACTS, bf16=False), hardware=_OLD_GPU)),
)
# What a workload may lack, one thing each; `…` stands for a name of the user's.
_LACKS: tuple[dict[str, Any], ...] = (
    {"num_blocks": 0},
    {"has_conv2d": False},
    {"optimizer_impls": (), "recordable": False, "optimizer_class": "…"},
    {"rebuild_problem": "the optimizer cannot be built anew with other settings"},
    {"compiler_problem": "…"},
    {"uneven_share": 0.0},
    {"uneven_share": None},
    {"uneven_batches": True, "length_gain": 1.5},
    {"uneven_batches": True, "length_gain": 1.0},
    {"uneven_batches": True, "length_problem": "the dataset or the loader does not allow it: …"},
    {"repeats_in_workers": True},
    {"open_file": "…"},
    {"own_impl": "fused"},
    {"own_step": True, "optimizer_class": "your optimizer"},
    {"shared_across": "blocks share a parameter"},
    {"sparse_gradients": True},
    {"varies": True},
    {"command": Command(argv=("python", "train.py"))},
)
_NUMERICS = {
    Numerics.EXACT: "they stay the same",
    Numerics.ROUNDING: "last digits may differ",
    Numerics.PRECISION: "another number format",
    Numerics.TRAINING: "the training itself changes",
}
_DEVICES = {"cpu": "a CPU", "cuda": "a GPU"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as the first page, and the log of changes."""
    readme = (REPOSITORY / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    files.append(File.generated(config, "changelog.md", content=changes))
    return files


def on_page_markdown(markdown: str, page: Any, config: MkDocsConfig, files: Files) -> str:
    """Put in what is made here, and leave out what only the tests and the repository have."""
    made = _MADE_HERE.sub(lambda match: PARTS[match[1]](), markdown)
    sources = set(files.src_uris)
    return _LINK.sub(lambda match: _link(match, sources), _COMMENT.sub("", made))


def _link(match: re.Match[str], pages: Collection[str]) -> str:
    """Return a link to a page of the site as it is, any other as its text."""
    return match[0] if match[2] in pages else match[1]


def knobs_page() -> str:
    """Return a table of all knobs, and below it a section for each."""
    rows = [
        (f"[`{knob.name}`](#{knob.name})", _sentence(knob.doc), knob.numerics.value)
        for knob in CATALOGUE
    ]
    sections = [section for family in FAMILIES for section in _family(family)]
    return "\n\n".join([_table(("knob", "what it does", "numbers"), rows), *sections])


def _family(family: ModuleType) -> list[str]:
    title, _, about = (inspect.getdoc(family) or "").partition(":")
    knobs: tuple[Knob, ...] = family.KNOBS
    # A knob may have the name of its family.
    heading = f"## {title} {{ #family-{title.lower()} }}"
    return [heading, _sentence(about.strip()), *(_section(knob) for knob in knobs)]


def _section(knob: Knob) -> str:
    lines = [f"### {knob.name} {{ #{knob.name} }}", _sentence(knob.doc), *_facts(knob)]
    return "\n\n".join(line for line in lines if line)


def _facts(knob: Knob) -> list[str]:
    shown = [
        _row("Values", _values(knob)),
        _row("When it helps", *_helps(knob)),
        _row("What it costs", *_costs(knob)),
        _row("Where it is left out", *_left_out(knob)),
        _row(
            "What it cannot run with", *(_sentence(conflict.reason) for conflict in knob.conflicts)
        ),
    ]
    return [row for row in shown if row]


def _row(title: str, *texts: str) -> str:
    said = list(dict.fromkeys(text for text in texts if text))
    if len(said) < 2:
        return f"**{title}.** {said[0]}" if said else ""
    return f"**{title}.**\n\n" + "\n".join(f"- {text}" for text in said)


def _values(knob: Knob) -> str:
    values = list(knob.known) or list(_offered(knob))
    listed = ", ".join(map(_code, values))
    if knob.guarded:
        guarded = ", ".join(map(_code, knob.guarded))
        allow = ",".join(map(spell, knob.guarded))
        listed += f"; {guarded} only after `--allow {allow}`, or by `--fix`"
    if _depends_on_workload(knob):
        listed += " in the example"
    if knob.numerics is Numerics.TRAINING and knob.allowed_from is None:
        listed += f"; it varies only after `--allow {knob.name}`"
    if knob.any_count:
        listed += f"; `--fix` and plan files take any whole number from {knob.least}"
    return f"{listed}."


def _site(knob: Knob) -> Site:
    """Return the first of the sites where the knob applies."""
    return next(site for site in _SITES if not isinstance(knob.values(site), Out))


def _offered(knob: Knob, site: Site | None = None) -> tuple[Value, ...]:
    """Return the values at a site, by default at the first one where the knob applies."""
    offer = knob.values(site or _site(knob))
    return () if isinstance(offer, Out) else offer


def _depends_on_workload(knob: Knob) -> bool:
    """Whether the values are others for another batch, or another number of cores."""
    site = _site(knob)
    facts = replace(site.facts, batch_size=site.facts.batch_size // 2)
    hardware = replace(site.hardware, num_cores=site.hardware.num_cores // 2)
    other = replace(site, facts=facts, hardware=hardware)
    return not knob.known and _offered(knob) != _offered(knob, other)


def _helps(knob: Knob) -> Iterable[str]:
    if knob.acts_on:
        bounds = sorted(bound.words for bound in knob.acts_on)
        yield f"In a step that is bound by {' or '.join(bounds)}."
    reasons = knob.reasons
    for value, why in reasons.by_value.items():
        yield f"{_code(value)}: {why}."
    if reasons.more and reasons.less:
        yield f"A larger count: {reasons.more}. A smaller one: {reasons.less}."
    elif not reasons.by_value:
        yield _sentence(reasons.change)
    if knob.hides is not None:
        yield f"With it, what a diagnosis calls {knob.hides.value} runs beside the rest of a step."
    if knob.needs_data_wait:
        yield "It is tried only while the loop waits for data."
    if knob.memory.makes_room:
        yield "Its memory is worth most where it makes room for a larger batch."


def _costs(knob: Knob) -> Iterable[str]:
    yield f"Numbers: `{knob.numerics.value}`, {_NUMERICS[knob.numerics]}."
    yield _memory(knob)
    slower = [value for value in _known_or_offered(knob) if _is_slower(knob, value)]
    if slower:
        yield f"Expected to cost some speed by itself: {', '.join(map(_code, slower))}."
    busier = [value for value in _known_or_offered(knob) if _is_more_work(knob, value)]
    if busier:
        yield f"More work for the host: {', '.join(map(_code, busier))}."
    if knob.lengthens_start:
        yield "The first step takes longer."
    if knob.recompiles_on:
        where = "" if knob.recompiles_on == ANY_DEVICE else f" on {_device(knob.recompiles_on)}"
        yield f"In a compiled plan each value is compiled anew{where}."
    for value, why in knob.reasons.back.items():
        yield f"A reason to return to {_code(value)}: {why}."
    if knob.measured_on is not MeasuredOn.ONE_DEVICE:
        yield "Several devices: its worth is measured with all of them."


def _device(kinds: Collection[str]) -> str:
    return " and ".join(_DEVICES[kind] for kind in sorted(kinds))


def _known_or_offered(knob: Knob) -> tuple[Value, ...]:
    return knob.known or _offered(knob)


def _effect(knob: Knob, value: Value) -> Effect:
    """Return the expected effect of a value where the knob applies, before any measurement."""
    return knob.speed(value, _site(knob))


def _is_slower(knob: Knob, value: Value) -> bool:
    effect = _effect(knob, value)
    fastest = effect.device * max(effect.products, effect.pointwise)
    return max(effect.host, fastest) <= 1 and min(effect.host, effect.device) < 1


def _is_more_work(knob: Knob, value: Value) -> bool:
    effect = _effect(knob, value)
    return effect.host < 1 < effect.device * effect.products


def _memory(knob: Knob) -> str:
    use = knob.memory
    if not use.matters:
        return "Memory: the same."
    if use.less_is_less is not None:
        count = "smaller" if use.less_is_less else "larger"
        return f"Memory: a {count} count needs less, as there are {use.why_less}."
    if use.saving is None:
        return "Memory: it may need more or less."
    ranks = sorted({use.rank(value) for value in _known_or_offered(knob)}, reverse=True)
    if len(ranks) < 2:
        return f"Memory: {use.why_less}." if use.why_less else "Memory: about the same."
    groups = [
        ", ".join(_code(v) for v in _known_or_offered(knob) if use.rank(v) == rank)
        for rank in ranks
    ]
    why = f" ({use.why_less})" if use.why_less else ""
    return f"Memory, least first: {'; then '.join(groups)}{why}."


def _left_out(knob: Knob) -> Iterable[str]:
    yield from map(_sentence, _conditions(knob))
    for label, site in _MACHINES:
        offered = _offered(knob, site)
        if knob.known and offered and set(offered) != set(knob.known):
            yield f"{label} it has {', '.join(map(_code, offered))}."
    sites = [*_SITES[:3], *(replace(_ONE_GPU, facts=replace(_FACTS, **lack)) for lack in _LACKS)]
    sites += [replace(_FOUR_GPUS, facts=replace(_FACTS, **lack)) for lack in _LACKS]
    for site in sites:
        offer = knob.values(site)
        yield _sentence(offer.reason if isinstance(offer, Out) else knob.missing(site))


def _conditions(knob: Knob) -> Iterable[str]:
    """Return which settings of other knobs it needs, or leaves a plan with."""
    usual = knob.active(Plan.of({}))
    others = [
        (other.name, value)
        for other in CATALOGUE
        if other is not knob
        for value in _known_or_offered(other)
        if knob.active(Plan.of({other.name: value})) is not usual
    ]
    if not others:
        return
    (name,) = {name for name, _ in others}  # none depends on two others
    having = [value for value in _known_or_offered(BY_NAME[name]) if _has(knob, name, value)]
    lacking = [value for value in _known_or_offered(BY_NAME[name]) if not _has(knob, name, value)]
    if len(lacking) == 1:
        yield f"not in plans with `{name}={spell(lacking[0])}`"
    else:
        yield f"only in plans with `{name}` {' or '.join(map(_code, having))}"


def _has(knob: Knob, other: str, value: Value) -> bool:
    """Whether a plan with this setting of another knob has the knob."""
    return knob.active(Plan.of({other: value}))


def commands_page() -> str:
    """Return a section for each command, with its options as `--help` has them."""
    group = typer.main.get_command(app)
    return "\n\n".join(_command(name, command) for name, command in group.commands.items())


def _command(name: str, command: Any) -> str:
    context = command.make_context(f"autotune {name}", [], resilient_parsing=True)
    usage = " ".join(["autotune", name, *command.collect_usage_pieces(context)])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    rows = [(f"`{what}`", _cell(text)) for what, text in filter(None, records)]
    about = inspect.cleandoc(command.help or "")
    return "\n\n".join(
        [f"### autotune {name}", f"    {usage}", about, _table(("option", "what it does"), rows)]
    )


def routes_page() -> str:
    """Return a table of the JSON API's routes, with what each returns."""
    return _routes(Api(lambda: None).router)


def job_routes_page() -> str:
    """Return a table of the service's routes, with what each does."""
    return _routes(JobRoutes(source=None, settings=None, wake=lambda: None).router)


def _routes(router: APIRouter) -> str:
    rows = []
    for route in router.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            about = inspect.cleandoc(route.endpoint.__doc__ or "").splitlines()[0]
            rows.append((", ".join(sorted(route.methods)), f"`{route.path}`", _cell(about)))
    return _table(("method", "address", "what it does"), rows)


def errors_page() -> str:
    """Return the tree of errors with their exit codes."""
    tree = (errors.__doc__ or "").split("\n\n")[1]
    return f"```text\n{textwrap.dedent(tree).rstrip()}\n```"


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _code(value: Value) -> str:
    return f"`{spell(value)}`"


def _sentence(text: str) -> str:
    """Return the text with a capital, unless it begins with a name, and a full stop."""
    if not text:
        return ""
    first = text.split(maxsplit=1)[0].strip(",;:")
    is_name = not first.replace("-", "").isalpha() or first in {"torch", "cuDNN", "glibc"}
    start = text if is_name else text[0].upper() + text[1:]
    return start if start.endswith(".") else f"{start}."


PARTS: dict[str, Callable[[], str]] = {
    "knobs": knobs_page,
    "commands": commands_page,
    "routes": routes_page,
    "job_routes": job_routes_page,
    "errors": errors_page,
}
