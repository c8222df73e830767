"""The trials of a run, ended and running; each space sees those on its number of ranks."""

from collections.abc import Iterable

from autotune.agent.done import Done
from autotune.agent.history import History
from autotune.agent.objectives.objective import Objective
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.proposal import Proposal
from autotune.agent.startup import MeasuredPlan
from autotune.search_space.space import Space
from autotune.trials.result import TrialResult


class Journal:
    """Keeps the histories of a run's spaces.

    Args:
        spaces: that of the run, and before it that of its scouts where it has any.
        memory_cap_bytes: of each device; plans that need more cannot win.
        done: the trials that an earlier session ended.
        objective: of the run; on fewer devices than its trials have, a part of it is asked for.
        compiled_earlier: processes of earlier runs, on as many devices as the run's trials have.
    """

    def __init__(
        self,
        spaces: Iterable[Space],
        memory_cap_bytes: float,
        done: Iterable[Done],
        objective: Objective = FASTEST,
        compiled_earlier: Iterable[MeasuredPlan] = (),
    ) -> None:
        self._objective, self._compiled_earlier = objective, compiled_earlier
        self._spaces = tuple(sorted(spaces, key=lambda space: space.num_ranks))
        self._memory_cap_bytes = memory_cap_bytes
        self._done = {trial.number: trial for trial in done}
        self._histories: dict[int, History] = {}
        self.running: dict[int, Proposal] = {}

    @property
    def done(self) -> tuple[Done, ...]:
        """The trials that ended, by number."""
        return tuple(self._done[number] for number in sorted(self._done))

    @property
    def num_busy(self) -> int:
        """Devices that trials run on."""
        return sum(proposal.num_ranks for proposal in self.running.values())

    def history(self, num_ranks: int) -> History:
        """Return what is known of the plans for so many devices."""
        if not self._histories:
            self._look()
        return self._histories[num_ranks]

    def start(self, proposal: Proposal) -> int:
        """Return the number of the trial that starts."""
        number = max((*self._done, *self.running), default=0) + 1
        self.running[number] = proposal
        self._histories.clear()
        return number

    def end(self, number: int, result: TrialResult) -> Done:
        """Return the trial that ended."""
        proposal = self.running.pop(number)
        trial = Done(
            number=number,
            plan=proposal.plan,
            purpose=proposal.purpose,
            reason=proposal.reason,
            result=result,
            num_ranks=proposal.num_ranks,
        )
        self._done[number] = trial
        self._histories.clear()
        return trial

    def _look(self) -> None:
        scouts: History | None = None
        most_ranks = self._spaces[-1].num_ranks
        for space in self._spaces:
            ranks, running = space.num_ranks, self.running.values()
            scouts = self._histories[ranks] = History(
                space=space,
                memory_cap_bytes=self._memory_cap_bytes,
                done=tuple(trial for trial in self.done if trial.num_ranks == ranks),
                pending=tuple(p.plan for p in running if p.num_ranks == ranks),
                scouts=scouts,
                objective=self._objective.for_part(ranks / most_ranks),
                compiled_earlier=tuple(self._compiled_earlier) if ranks == most_ranks else (),
            )
