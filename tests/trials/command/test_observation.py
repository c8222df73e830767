"""What trial 0 finds out about a command: by running it for a few steps as it is."""

import sys

import pytest

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.trials.request import Rejection


def test_facts_of_a_script(observe):
    facts = observe("train.py")
    assert isinstance(facts, WorkloadFacts)
    assert (facts.batch_size, facts.dataset_len, facts.world_size) == (8, 400, 1)
    assert (facts.num_blocks, facts.block_class) == (3, "Block")
    assert facts.optimizer_class == "AdamW"
    assert "fused" in facts.optimizer_impls
    assert dict(facts.own_settings)["workers"] == 0
    # Its own parser names the argument that has the batch's value.
    assert facts.command.flag_of("batch_size") == "--batch-size"
    assert WorkloadFacts.from_dict(facts.to_dict()) == facts
    linear = 3 * 2 * (3 * 16 * 16 + 16 * 4)  # forward, and twice as much backward
    assert facts.flops_per_sample == pytest.approx(linear - 2 * 16 * 16)  # inputs need no gradient


def test_argument_in_the_way_of_configuration_files_is_bound(observe, home):
    text = (home / "train.py").read_text()
    old = text[text.index("parser =") : text.index("class Points")]
    given = (
        "class args:\n    accum, steps = 1, 100000\n"
        "    batch_size = int(dict(word.split('=') for word in sys.argv[1:])['data.batch_size'])\n"
    )
    (home / "train.py").write_text(text.replace(old, given))
    facts = observe("train.py", "data.batch_size=16")
    assert facts.command.flag_of("batch_size") == "data.batch_size"
    assert facts.command.under(Plan.of({"batch_size": 32}))[-1] == "data.batch_size=32"


def test_option_of_a_script_inside_a_shell_script_is_not_bound(observe, home):
    """What is added to the command may not reach it; the loader of the script gets the batch."""
    (home / "train.sh").write_text(f"{sys.executable} train.py\n")
    facts = observe("train.sh", program="bash")
    assert facts.command.flag_of("batch_size").startswith("DataLoader(")


def test_accumulation_is_bound_only_where_its_name_says_so(observe):
    facts = observe("train.py", "--accum", "2")
    assert facts.command.flag_of("accumulation") is None
    assert facts.global_batch_size is None
    assert any("2 backward passes" in remark for remark in facts.remarks)
    bound = observe("train.py", "--accum", "2", bindings=(("accumulation", "--accum"),))
    assert bound.global_batch_size == 16


def test_what_the_script_does_by_itself_is_its_baseline(observe, home):
    text = (home / "train.py").read_text()
    text = text.replace("shuffle=True", "shuffle=True, num_workers=1, prefetch_factor=4")
    text = text.replace("lr=1e-3", "lr=1e-3, fused=True")
    text = text.replace("model = nn.Seq", "model = torch.compile(nn.Seq").replace(
        "4))\n", "4)))\n"
    )
    text = text.replace(
        "loss = nn", "with torch.autocast('cpu', torch.bfloat16):\n            loss = nn"
    )
    (home / "train.py").write_text(text.replace("torch.compile(", "compiled("))
    (home / "train.py").write_text(
        "import torch\ndef compiled(model):\n    return torch.compile(model, backend='eager')\n"
        + (home / "train.py").read_text()
    )
    facts = observe("train.py")
    assert isinstance(facts, WorkloadFacts), facts
    own, held = dict(facts.own_settings), dict(facts.held)
    assert (own["workers"], own["prefetch"], own["precision"]) == (1, 4, "bf16")
    assert facts.own_impl == "fused"
    assert "compiles its model by itself" in held["compile_mode"]
    assert "its own autocast to bfloat16" in held["precision"]


def test_threads_of_the_baseline_are_those_that_the_script_computes_with(observe, home):
    """They are not the machine's cores where `torchrun`, OMP_NUM_THREADS or the script says so."""
    text = (home / "train.py").read_text()
    (home / "train.py").write_text(
        text.replace("step = 0\n", "torch.set_num_threads(3)\nstep = 0\n")
    )
    assert dict(observe("train.py").own_settings)["threads"] == 3


BAD = {
    "print('done')": "ended with exit status 0 before it trained",
    "import sys; sys.exit(3)": "exit status 3",
    "import torch; 1 / 0": "ZeroDivisionError",
    "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": "SIGKILL",
}


@pytest.mark.parametrize(("script", "words"), BAD.items())
def test_command_that_does_not_train_is_rejected(observe, home, script, words):
    (home / "train.py").write_text(script)
    answer = observe("train.py")
    assert isinstance(answer, Rejection)
    assert words in answer.error


def test_training_that_is_too_short_is_rejected(observe):
    answer = observe("train.py", "--steps", "1")
    assert "let it train for more steps" in answer.error


def test_training_without_a_loader_is_counted_by_what_the_model_gets(observe, home):
    (home / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "while True:\n"
        "    loss = model(torch.randn(24, 4)).mean()\n"
        "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
    )
    facts = observe("train.py")
    assert facts.batch_size == 24
    assert "no torch DataLoader" in dict(facts.held)["workers"]


def test_two_optimizers_are_told_of(observe, home):
    (home / "train.py").write_text(
        "import torch\n"
        "one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)\n"
        "first = torch.optim.SGD(one.parameters(), lr=0.1)\n"
        "second = torch.optim.Adam(two.parameters())\n"
        "while True:\n"
        "    two(one(torch.randn(8, 4))).mean().backward()\n"
        "    first.step(); second.step(); first.zero_grad(); second.zero_grad()\n"
    )
    facts = observe("train.py")
    assert any("2 optimizers (SGD, Adam)" in remark for remark in facts.remarks)


def test_validation_before_the_training_is_not_taken_for_it(observe, home):
    text = (home / "train.py").read_text()
    first = "for x, y in valid:\n    with torch.no_grad():\n        model(x)\nstep = 0\n"
    (home / "train.py").write_text(text.replace("step = 0\n", first))
    assert observe("train.py").batch_size == 8


def test_autocast_inside_of_the_model_is_seen(observe, home):
    text = (home / "train.py").read_text()
    inside = (
        "def under_autocast(x, forward=model.forward):\n"
        "    with torch.autocast('cpu', torch.bfloat16):\n"
        "        return forward(x)\n"
        "model.forward = under_autocast\nstep = 0\n"
    )
    (home / "train.py").write_text(text.replace("step = 0\n", inside))
    assert dict(observe("train.py").own_settings)["precision"] == "bf16"
