"""Looks at a workload once, in a process of its own, and returns what the space depends on."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.applying.construction import construct_without_values
from autotune.trials.applying.loader import dataset_len
from autotune.trials.applying.optimizer import build_optimizer
from autotune.trials.failure import one_line, user_traceback
from autotune.trials.probing.baseline import baseline_batch_size
from autotune.trials.probing.batches import with_batch_facts
from autotune.trials.probing.loader import with_dataset_facts
from autotune.trials.probing.machine import (
    compiler_problem,
    fp8_problem,
    has_bf16,
    has_fp16,
)
from autotune.trials.probing.model import with_model_facts
from autotune.trials.probing.optimizer import (
    with_few_values,
    with_late_gradients,
    with_optimizer_facts,
)
from autotune.trials.probing.source import Imports, source_hash
from autotune.trials.request import ProbeRequest, Rejection
from autotune.trials.seeding import seed_all
from autotune.trials.workload import load_workload


def answer(request: ProbeRequest) -> Iterator[WorkloadFacts | Rejection]:
    """Yield one answer: the facts, or what is wrong with the workload."""
    path = Path(request.workload_path)
    os.chdir(request.working_dir)
    try:
        yield probe(path, request.hardware, request.seed, request.arguments)
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is the answer
        yield Rejection(error=one_line(error), traceback=user_traceback(error, path))


def probe(
    path: Path, hardware: Hardware, seed: int, arguments: tuple[str, ...] = ()
) -> WorkloadFacts:
    """Load the workload and return the facts about it.

    Raises:
        WorkloadError: when it breaks its contract or raises.
    """
    seed_all(seed)
    imports = Imports()
    workload = load_workload(path, arguments)
    imports.note()
    dataset = workload.build_dataset()
    num_samples = dataset_len(dataset)
    batch_size, remarks = baseline_batch_size(workload, num_samples)
    plan = Plan.of({"batch_size": batch_size, **{k: v[0] for k, v in workload.knobs.items()}})
    # Drawing a billion parameters takes ten seconds, and no fact depends on their values.
    model = construct_without_values(workload, plan) or workload.model(plan.values)
    optimizer = build_optimizer(workload, plan, with_few_values(model))
    facts = WorkloadFacts(
        batch_size=batch_size,
        global_batch_size=workload.global_batch_size,
        tokens_per_sample=workload.tokens_per_sample,
        user_knobs=tuple(workload.knobs.items()),
        dataset_len=num_samples,
        compiler_problem=compiler_problem(hardware),
        bf16=has_bf16(hardware),
        fp16=has_fp16(hardware),
        fp8_problem=fp8_problem(),
        remarks=remarks,
        arguments=arguments,
        evaluates=workload.evaluate is not None,
    )
    facts = with_model_facts(facts, model, find_blocks(model, workload))
    facts = with_optimizer_facts(facts, optimizer, model)
    # After the others, as the model has no values then.
    facts = with_batch_facts(facts, workload, plan, seed, model)
    if facts.varies:
        facts = with_late_gradients(facts, optimizer, model)
    facts = with_dataset_facts(facts, dataset, seed)
    return replace(facts, imports=imports.note(), source_hash=source_hash(path))
