"""A trial under way, as the driver sees it: its ranks, their deadlines, and how it ends."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.dispatch.death import explain_death, lost
from autotune.dispatch.job import Failure
from autotune.dispatch.slot import Item, Remains
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import undiagnosed
from autotune.trials.merge import merge
from autotune.trials.request import TrialRequest
from autotune.trials.result import Kept, Outcome, Phase, TrialResult

# When one rank failed, the others may know more: the rank that ran out of memory is the cause,
# and whoever waited for it only lost a peer.
LAST_WORD_S = 1.0
# After its result a rank has this long to take leave of the others.
LEAVE_S = 5.0


_KILLED = TrialResult(outcome=Outcome.CANCELLED, error="another rank had failed", peer_lost=True)


@dataclass(slots=True, kw_only=True)
class RunningRank:
    """One process of a trial.

    Attributes:
        seat: the index of its slot.
        token: marks its processes.
        log: where its output goes on this machine.
        stream: what its slot yields.
        kept: what it measured, before it began to explain that.
        verdict: its result, as soon as it is known.
        is_killed: by the driver; how it dies then says nothing.
        remains: what the slot found when all was over; the rank is gone then.
    """

    seat: int
    token: str
    log: Path
    stream: Any
    phase: Phase = Phase.START
    phase_since: float
    kept: TrialResult | None = None
    verdict: TrialResult | None = None
    is_killed: bool = False
    remains: Remains | None = None

    def hear(self, item: Item, now: float) -> None:
        """Take in what the rank's slot yielded."""
        if isinstance(item, Phase):
            self.phase, self.phase_since = item, now
        elif isinstance(item, Kept):
            self.kept = item.result
        elif isinstance(item, TrialResult):
            self.verdict = replace(item, phase=_end_phase(item, self.phase))
        elif isinstance(item, Failure):
            self.verdict = TrialResult(
                outcome=Outcome.INFRA,
                cause=item.cause,
                error=f"autotune failed inside the trial: {item.error}",
                traceback=item.traceback,
                phase=self.phase,
            )
        else:
            self._bury(item)

    def _bury(self, remains: Remains) -> None:
        self.remains = remains
        if remains.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(remains.log)
        if self.verdict is None and remains.exit_code is not None and not self.is_killed:
            self.verdict = explain_death(
                remains.exit_code,
                self.phase,
                oom_killed=remains.oom_killed,
                log_tail=remains.log_tail,
            )

    def aborted_after(self, peer: "RunningRank") -> bool:
        """Whether the process aborted once `peer` had failed for a reason of its own.

        So the communication libraries end a process whose peer is gone.
        """
        mine, theirs = self.remains or Remains(), peer.remains or Remains()
        if mine.exit_code != -signal.SIGABRT or mine.ended_at is None or not peer.failed_by_itself:
            return False
        return theirs.ended_at is None or theirs.ended_at < mine.ended_at

    @property
    def failed_by_itself(self) -> bool:
        """Whether it failed, and not because another rank had."""
        verdict = self.verdict
        return verdict is not None and verdict.outcome is not Outcome.OK and not verdict.peer_lost

    def lose(self, reason: str) -> None:
        """Take in that its slot, node or Ray itself is gone."""
        self.remains = Remains()
        self.verdict = self.verdict or lost(self.phase, reason)


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """One trial between `submit` and its result.

    Attributes:
        started_at: when it was submitted, on the runner's clock.
        stopped: its result when it was decided from outside, by a deadline or a cancellation.
        kill_at: when to kill the ranks that are left, as one has failed; None: none has.
        over_since: since when only the slots' cleaning up is waited for; None: not yet.
    """

    request: TrialRequest
    ranks: Sequence[RunningRank]
    started_at: float
    stopped: TrialResult | None = None
    kill_at: float | None = None
    over_since: float | None = None
    worked: dict[Phase, float] = field(default_factory=dict)

    @property
    def waits_for(self) -> dict[Any, RunningRank]:
        """The streams that may still say something, with their ranks."""
        return {rank.stream: rank for rank in self.ranks if rank.remains is None}

    def hear(self, rank: RunningRank, item: Item, now: float) -> None:
        """Take in what a slot yielded."""
        if rank is self.ranks[0] and isinstance(item, Phase | TrialResult):
            self._leave_phase(rank, now)
        rank.hear(item, now)
        self._judge(rank, now)

    def lose(self, rank: RunningRank, reason: str, now: float) -> None:
        """Take in that a rank's slot, node or Ray itself is gone."""
        rank.lose(reason)
        self._judge(rank, now)

    def _judge(self, rank: RunningRank, now: float) -> None:
        if rank.verdict is not None and rank.verdict.outcome is not Outcome.OK:
            self._kill_at(now if len(self.ranks) == 1 else now + LAST_WORD_S)
        if self.over_since is None and not self._working():
            self.over_since = now
            self._kill_at(now + LEAVE_S)

    def _kill_at(self, moment: float) -> None:
        self.kill_at = moment if self.kill_at is None else min(moment, self.kill_at)

    def kill(self, now: float) -> list[RunningRank]:
        """Note that what is left is killed now; return the ranks that are."""
        self.kill_at, self.over_since = None, now
        left = [rank for rank in self.ranks if rank.remains is None and not rank.is_killed]
        for rank in left:
            rank.is_killed = True
        return left

    def _leave_phase(self, rank: RunningRank, now: float) -> None:
        if rank.phase is not Phase.START:
            self.worked[rank.phase] = self.worked.get(rank.phase, 0.0) + now - rank.phase_since

    def stop(self, outcome: Outcome, error: str, now: float, cause: Cause | None = None) -> None:
        """Decide from outside how the trial ends."""
        first = self.ranks[0]
        self._leave_phase(first, now)
        self.stopped = TrialResult(outcome=outcome, error=error, phase=first.phase, cause=cause)
        self._kill_at(now)

    def deadline(self) -> float:
        """Return when, on the runner's clock, `expire` or `kill` is due."""
        if self.kill_at is not None:
            return self.kill_at
        if self.over_since is not None:
            return math.inf
        times = [rank.phase_since + self._allowed_s(rank) for rank in self._working()]
        return min([*times, self._give_up_at()])

    def _give_up_at(self) -> float:
        after_s = self.request.give_up_after_s
        return math.inf if after_s is None else self.started_at + after_s

    def _working(self) -> list[RunningRank]:
        return [rank for rank in self.ranks if rank.verdict is None and rank.remains is None]

    def expire(self, now: float) -> None:
        """Decide the end of a trial whose deadline has passed."""
        if now >= self._give_up_at():
            cause = self.request.give_up_cause
            self.stop(Outcome.CANCELLED, cause.words, now, cause)
            return
        late = min(self._working(), key=lambda rank: rank.phase_since + self._allowed_s(rank))
        error = f"phase {late.phase.value} did not end within {self._allowed_s(late):g} s"
        self.stop(Outcome.TIMEOUT, error, now)

    def _allowed_s(self, rank: RunningRank) -> float:
        return self.request.deadlines.of(rank.phase)

    def conclude(self, now: float) -> TrialResult:
        """Return the result, now that every process is gone and the devices are free."""
        result = self._or_kept(self.stopped or merge([self._verdict(r) for r in self.ranks]))
        total_s = now - self.started_at
        return replace(
            result,
            log_tail=_log_tail(self.ranks),
            total_s=total_s,
            overhead_s=max(0.0, total_s - self._working_s(result)),
        )

    def _verdict(self, rank: RunningRank) -> TrialResult:
        verdict = rank.verdict or _KILLED
        if any(rank.aborted_after(peer) for peer in self.ranks):
            return replace(verdict, peer_lost=True)
        return verdict

    def _or_kept(self, result: TrialResult) -> TrialResult:
        """Return what was measured if only its diagnosis failed; rank 0 speaks for all."""
        kept = self.ranks[0].kept
        if kept is None or result.outcome is Outcome.OK:
            return result
        return replace(kept, diagnosis=undiagnosed(f"{result.outcome.value}: {result.error}"))

    def _working_s(self, result: TrialResult) -> float:
        m = result.measurement
        if m is None:
            return sum(self.worked.values())
        diagnose_s = result.diagnosis.took_s if result.diagnosis else 0.0
        return m.build_s + m.first_step_s + m.warm_up_s + m.measure_s + diagnose_s


def _end_phase(result: TrialResult, reached: Phase) -> Phase:
    return reached if result.phase is Phase.START else result.phase


def _log_tail(ranks: Sequence[RunningRank]) -> str:
    """Return the ends of the ranks' output."""
    if len(ranks) == 1:
        return _tail(ranks[0])
    texts = [f"[rank {number}]\n{_tail(rank)}" for number, rank in enumerate(ranks)]
    return "".join(texts)


def _tail(rank: RunningRank) -> str:
    remains = rank.remains or Remains()
    if remains.leftover is None:
        return remains.log_tail
    return f"{remains.log_tail}\n[autotune could not free this trial's {remains.leftover}]\n"
