"""Steps that a device replays are compared as they are replayed."""

import torch
from torch import nn

from autotune.trials.applying.graphs import RecordedStep
from autotune.trials.numerics import check as numerics
from autotune.trials.numerics_report import Part
from tests.trials.numerics import workloads as w
from tests.trials.replayed_on_cpu import stand_in

RECORDED = {"cuda_graph": "step"}


def recorded_on_cpu(monkeypatch, after_recording):
    """Let the plan's steps be recorded and replayed; the reference's are not."""
    build_step, kept = numerics.build_step, []

    def trained():
        step = kept[-1]
        state = [v for values in step.optimizer.state.values() for v in values.values()]
        tensors = [v for v in state if isinstance(v, torch.Tensor)]
        return [*step.model.parameters(), *step.model.buffers(), *tensors]

    graphs = stand_in(monkeypatch, trained)

    def build(workload, plan, *args):
        step = build_step(workload, plan, *args)
        if plan.get("cuda_graph", "off") == "step":
            kept.append(step)
            record(step)
        return step

    def record(step):
        step._recorded = RecordedStep(
            step._train, step.move, dict, step.optimizer, step.device, non_blocking=False
        )
        call = step._recorded._record

        def noted(batch):
            graph = call(batch)
            after_recording(step)
            return graph

        step._recorded._record = noted

    monkeypatch.setattr(numerics, "build_step", build)
    return graphs


def test_a_replayed_step_passes(write_workload, monkeypatch):
    """What its optimizer reads is seen in the replay, and weights are put where it reads them."""
    graphs = recorded_on_cpu(monkeypatch, lambda step: None)
    report = w.checked(write_workload(base=w.HEAD), RECORDED)
    assert report.passed, report.summary
    assert len(graphs) == 1
    assert {found.part for found in report.deviations} >= {Part.GRADIENTS, Part.WEIGHTS}


def test_a_graph_that_reads_old_weights_fails(write_workload, monkeypatch):
    """The model has other tensors than those in the graph, as after a cast that was cached."""

    def exchange(step):
        for module in step.model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(parameter.detach().clone()))

    recorded_on_cpu(monkeypatch, exchange)
    report = w.checked(write_workload(base=w.HEAD), RECORDED)
    wrong = {found.part for found in report.deviations if not found.passed}
    assert Part.GRADIENTS in wrong


def test_a_graph_that_reads_an_old_batch_fails(write_workload, monkeypatch):
    """Its input is not filled again."""
    recorded_on_cpu(
        monkeypatch, lambda step: setattr(step._recorded, "_refill", lambda batch: None)
    )
    report = w.checked(write_workload(base=w.HEAD), RECORDED)
    wrong = {found.part for found in report.deviations if not found.passed}
    assert Part.GRADIENTS in wrong
