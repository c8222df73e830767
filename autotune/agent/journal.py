"""The trials of a run, finished and running, as a history for each of its spaces."""

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
        spaces: the spaces of the run, each with another number of ranks.
        memory_cap_bytes: peak memory of a device above which a plan cannot win.
        done: the trials that an earlier session of the run finished.
        objective: of the run; trials on fewer devices are held to a part of it.
        compiled_earlier: measurements of earlier runs with as many devices in a trial.
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
        """The finished trials, by number."""
        return tuple(self._done[number] for number in sorted(self._done))

    @property
    def num_busy(self) -> int:
        """The number of devices that trials run on."""
        return sum(proposal.num_ranks for proposal in self.running.values())

    def history(self, num_ranks: int) -> History:
        """Return the history of the trials with this number of ranks."""
        if not self._histories:
            self._build_histories()
        return self._histories[num_ranks]

    def start(self, proposal: Proposal) -> int:
        """Note that a trial starts and return its number."""
        number = max((*self._done, *self.running), default=0) + 1
        self.running[number] = proposal
        self._histories.clear()
        return number

    def end(self, number: int, result: TrialResult) -> Done:
        """Note that a trial ended and return it."""
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

    def _build_histories(self) -> None:
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
