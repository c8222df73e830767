"""Which parts of a model are put into training."""

from tests.trials.applying.steps import step_of


def test_a_model_that_keeps_its_norms_in_evaluation_is_asked_to(write_workload):
    """By the `train` of its own, which a loop of the user's would call."""
    path = write_workload(
        """
        class Frozen(nn.Sequential):
            def train(self, mode=True):
                super().train(mode)
                self[1].eval()
                return self

        def build_model():
            return Frozen(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
        """
    )
    with step_of(path, {}) as step:
        assert [part.training for part in step.model] == [True, False, True]


def test_what_is_in_evaluation_stays_there(write_workload):
    """A frozen part; what is to be trained comes in evaluation from libraries, and is trained."""
    path = write_workload(
        """
        def build_model():
            model = nn.Sequential(nn.Linear(16, 3), nn.BatchNorm1d(3))
            model[1].eval().requires_grad_(False)
            return model
        """
    )
    assert [m.training for m in step_of(path).model.modules()] == [True, True, False]
    part = write_workload(
        "def build_model():\n"
        "    pretrained = nn.Sequential(nn.Linear(16, 16), nn.Dropout()).eval()\n"
        "    return nn.Sequential(pretrained, nn.Linear(16, 3))"
    )
    assert all(m.training for m in step_of(part).model.modules())
    whole = write_workload("def build_model(): return nn.Linear(16, 3).eval()")
    assert step_of(whole).model.training


def test_a_pretrained_model_with_an_adapter_is_in_training_as_a_whole(write_workload):
    """What is frozen in it, dropout included, belongs to what is trained; a teacher does not."""
    path = write_workload(
        """
        def build_model():
            frozen = nn.Sequential(nn.Linear(16, 16), nn.Dropout())
            teacher = nn.Sequential(nn.Linear(16, 16), nn.Dropout())
            for parameter in (*frozen.parameters(), *teacher.parameters()):
                parameter.requires_grad_(False)
            return nn.Sequential(nn.Sequential(frozen, nn.Linear(16, 3)).eval(), teacher.eval())

        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model[0](x), y)
        """
    )
    pretrained, teacher = step_of(path).model
    assert all(module.training for module in pretrained.modules())
    assert not any(module.training for module in teacher.modules())
