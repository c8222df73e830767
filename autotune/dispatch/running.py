"""A running trial in the driver: what its ranks report, their deadlines, and its result."""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.dispatch.death import explain_death, lost_result
from autotune.dispatch.job import Failure
from autotune.dispatch.slot_actor import Item, RankExit
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import undiagnosed
from autotune.trials.merge import merge
from autotune.trials.request import TrialRequest
from autotune.trials.result import Kept, Outcome, Phase, TrialResult

# When a rank has failed, the others have this long to report, too, before they are killed. The
# first to fail may only have lost a peer, while another ran out of memory and is the cause.
PEER_REPORT_TIMEOUT_S = 1.0
# After the last result, ranks have this long to leave the process group and end.
LEAVE_GROUP_TIMEOUT_S = 5.0

# The result of a rank that was killed because another had failed.
_KILLED = TrialResult(outcome=Outcome.CANCELLED, error="another rank had failed", peer_lost=True)


@dataclass(slots=True, kw_only=True)
class RunningRank:
    """One rank of a running trial.

    Attributes:
        slot: the index of its slot.
        token: in the environment of its processes.
        log: its log file on this machine.
        stream: Ray's generator of what its slot actor yields.
        phase, phase_since: the phase it is in, and since when on the runner's clock.
        kept: what it measured before its diagnosis began; the result if the diagnosis fails.
        result: its result; None: not known yet.
        is_killed: whether the driver killed it; its exit code then means nothing.
        end: how its process ended; None: it has not ended, or not been cleaned up.
    """

    slot: int
    token: str
    log: Path
    stream: Any
    phase: Phase = Phase.START
    phase_since: float
    kept: TrialResult | None = None
    result: TrialResult | None = None
    is_killed: bool = False
    end: RankExit | None = None

    def receive(self, item: Item, now: float) -> None:
        """Record an item that the rank's slot actor yielded."""
        if isinstance(item, Phase):
            self.phase, self.phase_since = item, now
        elif isinstance(item, Kept):
            self.kept = item.result
        elif isinstance(item, TrialResult):
            self.result = replace(item, phase=_end_phase(item, self.phase))
        elif isinstance(item, Failure):
            self.result = TrialResult(
                outcome=Outcome.INFRA,
                cause=item.cause,
                error=f"autotune failed inside the trial: {item.error}",
                traceback=item.traceback,
                phase=self.phase,
            )
        else:
            self._receive_end(item)

    def _receive_end(self, end: RankExit) -> None:
        self.end = end
        if end.log is not None:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(end.log)
        if self.result is None and end.exit_code is not None and not self.is_killed:
            self.result = explain_death(
                end.exit_code,
                self.phase,
                oom_killed=end.oom_killed,
                log_tail=end.log_tail,
            )

    def aborted_after(self, peer: "RunningRank") -> bool:
        """Return whether this rank was aborted because its peer had failed before.

        The communication libraries abort a process when one of its peers is gone.
        """
        mine, theirs = self.end or RankExit(), peer.end or RankExit()
        if mine.exit_code != -signal.SIGABRT or mine.ended_at is None or not peer.failed_by_itself:
            return False
        return theirs.ended_at is None or theirs.ended_at < mine.ended_at

    @property
    def failed_by_itself(self) -> bool:
        """Whether the rank failed, and not because another rank had."""
        result = self.result
        return result is not None and result.outcome is not Outcome.OK and not result.peer_lost

    def mark_lost(self, reason: str) -> None:
        """Record that the rank's slot, its node or Ray itself is lost."""
        self.end = RankExit()
        self.result = self.result or lost_result(self.phase, reason)


@dataclass(slots=True, kw_only=True)
class RunningTrial:
    """A trial between `submit` and its result. All times are on the runner's clock.

    Attributes:
        asked_at: when `submit` was called, from which `give_up_after_s` counts.
        started_at: when its slots were there; they wait for Ray to start.
        stopped: its result, when a deadline or a cancellation ended it; else None.
        kill_at: when to kill the ranks that still run; None: they may go on.
        ended_since: since when every rank has its result or has ended; None: some still work.
        phase_s: seconds that rank 0 spent in each phase, without `start`.
    """

    request: TrialRequest
    ranks: Sequence[RunningRank]
    asked_at: float
    started_at: float
    stopped: TrialResult | None = None
    kill_at: float | None = None
    ended_since: float | None = None
    phase_s: dict[Phase, float] = field(default_factory=dict)

    @property
    def open_streams(self) -> dict[Any, RunningRank]:
        """The streams that have not ended, each with its rank."""
        return {rank.stream: rank for rank in self.ranks if rank.end is None}

    @property
    def has_begun(self) -> bool:
        """Whether any rank has entered its first phase."""
        return any(rank.phase is not Phase.START for rank in self.ranks)

    def receive(self, rank: RunningRank, item: Item, now: float) -> None:
        """Record an item that the slot actor of `rank` yielded."""
        if rank is self.ranks[0] and isinstance(item, Phase | TrialResult):
            self._add_phase_time(rank, now)
        rank.receive(item, now)
        self._plan_kill(rank, now)

    def mark_lost(self, rank: RunningRank, reason: str, now: float) -> None:
        """Record that the slot of `rank`, its node or Ray itself is lost."""
        rank.mark_lost(reason)
        self._plan_kill(rank, now)

    def mark_unreported(self, rank: RunningRank, reason: str, now: float) -> None:
        """Record that `rank` was to end and nothing answers for it.

        A trial that had not begun then was not too slow: what should have started it is to blame.
        """
        if rank.phase is Phase.START:
            self.stopped = None
        self.mark_lost(rank, reason, now)

    def _plan_kill(self, rank: RunningRank, now: float) -> None:
        if rank.result is not None and rank.result.outcome is not Outcome.OK:
            self._kill_by(now if len(self.ranks) == 1 else now + PEER_REPORT_TIMEOUT_S)
        if self.ended_since is None and not self._working():
            self.ended_since = now
            self._kill_by(now + LEAVE_GROUP_TIMEOUT_S)

    def _kill_by(self, moment: float) -> None:
        self.kill_at = moment if self.kill_at is None else min(moment, self.kill_at)

    def kill(self, now: float) -> list[RunningRank]:
        """Mark the ranks that still run as killed, and return them for the caller to kill."""
        self.kill_at, self.ended_since = None, now
        running = [rank for rank in self.ranks if rank.end is None and not rank.is_killed]
        for rank in running:
            rank.is_killed = True
        return running

    def _add_phase_time(self, rank: RunningRank, now: float) -> None:
        if rank.phase is not Phase.START:
            self.phase_s[rank.phase] = self.phase_s.get(rank.phase, 0.0) + now - rank.phase_since

    def stop(self, outcome: Outcome, error: str, now: float, cause: Cause | None = None) -> None:
        """End the trial with this outcome: kill its ranks, and ignore what they report."""
        first = self.ranks[0]
        self._add_phase_time(first, now)
        self.stopped = TrialResult(outcome=outcome, error=error, phase=first.phase, cause=cause)
        self._kill_by(now)

    def deadline(self) -> float:
        """Return when `kill` is due, or `expire` if nothing happens before."""
        if self.kill_at is not None:
            return self.kill_at
        if self.ended_since is not None:
            return math.inf
        times = [rank.phase_since + self._allowed_s(rank) for rank in self._working()]
        return min([*times, self._give_up_at()])

    def _give_up_at(self) -> float:
        after_s = self.request.give_up_after_s
        return math.inf if after_s is None else self.asked_at + after_s

    def _working(self) -> list[RunningRank]:
        return [rank for rank in self.ranks if rank.result is None and rank.end is None]

    def expire(self, now: float) -> None:
        """End a trial whose deadline has passed, as a timeout or as given up."""
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
        """Return the trial's result, once every process has ended and the devices are free."""
        result = self._or_kept(self.stopped or merge([self._result_of(r) for r in self.ranks]))
        total_s = now - self.started_at
        return replace(
            result,
            log_tail=_log_tail(self.ranks),
            total_s=total_s,
            overhead_s=max(0.0, total_s - self._working_s(result)),
        )

    def _result_of(self, rank: RunningRank) -> TrialResult:
        result = rank.result or _KILLED
        if any(rank.aborted_after(peer) for peer in self.ranks):
            return replace(result, peer_lost=True)
        return result

    def _or_kept(self, result: TrialResult) -> TrialResult:
        """Return what was measured if only its diagnosis failed; rank 0 speaks for all."""
        kept = self.ranks[0].kept
        if kept is None or result.outcome is Outcome.OK:
            return result
        return replace(kept, diagnosis=undiagnosed(f"{result.outcome.value}: {result.error}"))

    def _working_s(self, result: TrialResult) -> float:
        m = result.measurement
        if m is None:
            return sum(self.phase_s.values())
        diagnose_s = result.diagnosis.took_s if result.diagnosis else 0.0
        return m.build_s + m.first_step_s + m.warm_up_s + m.measure_s + diagnose_s


def _end_phase(result: TrialResult, reached: Phase) -> Phase:
    return reached if result.phase is Phase.START else result.phase


def _log_tail(ranks: Sequence[RunningRank]) -> str:
    """Return the end of each rank's output, one below the other."""
    if len(ranks) == 1:
        return _tail(ranks[0])
    texts = [f"[rank {number}]\n{_tail(rank)}" for number, rank in enumerate(ranks)]
    return "".join(texts)


def _tail(rank: RunningRank) -> str:
    end = rank.end or RankExit()
    if end.leftover is None:
        return end.log_tail
    return f"{end.log_tail}\n[autotune could not free this trial's {end.leftover}]\n"
