"""Measures the device-seconds that each search strategy needs to come near the best plan.

    python benchmarks/search_efficiency.py                      # all tables, 30 seeds
    python benchmarks/search_efficiency.py --seeds 5 benchmarks/tables/gpt-*.jsonl

It replays recorded tables, so it needs no device; the seconds are those of the recording. It
prints a Markdown table for each recorded table, each game to stderr when it ends, and draws the
best so far against device-seconds.
"""

import argparse
import concurrent.futures
import math
import os
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).parent
os.environ["OMP_NUM_THREADS"] = "1"  # the GP sampler's matrices are small
sys.path[:0] = [str(HERE.parent), str(HERE)]

from games import Game  # noqa: E402
from players import PLAYERS, SAMPLERS, play  # noqa: E402

from autotune.agent.settings import SearchSettings  # noqa: E402
from autotune.dispatch.table import read_table  # noqa: E402

SHARES = (0.95, 0.98)  # of the best throughput


def main():
    args = parse_args()
    for path in args.tables:
        table = read_table(path)
        print(headline(path, table))
        games = play_all(path, args)
        print(markdown(games))
        print(verdict(games), flush=True)
        if args.plots is not None:
            draw(games, table, args.plots / f"{path.stem}.svg")


def parse_args():
    parser = argparse.ArgumentParser()
    found = sorted((HERE / "tables").glob("*.jsonl"))
    parser.add_argument("tables", type=Path, nargs="*", default=found)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--players", nargs="+", default=list(PLAYERS), choices=list(PLAYERS))
    parser.add_argument("--plots", type=Path, help="folder for the plots (needs matplotlib)")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


def play_all(path, args):
    """Return {player: the progress of its games}, one game for each seed."""
    seeds = range(args.seeds)
    with concurrent.futures.ProcessPoolExecutor(args.processes) as pool:
        running = {
            name: [pool.submit(played, name, path, seed) for seed in seeds]
            for name in args.players
        }
        for name, games in running.items():
            for seed, one in enumerate(games):
                took = seconds(seconds_to(one.result(), SHARES[-1]))
                print(f"{path.stem}, {name}, seed {seed}: within 2 % {took}", file=sys.stderr)
        return {name: [one.result() for one in games] for name, games in running.items()}


def played(name, path, seed):
    """Play one game, and return (device-seconds, share of the best) at each of its gains."""
    table = read_table(path)
    game = Game(table, memory_cap_bytes=memory_cap(table), seed=seed, near=max(SHARES))
    return play(name, game).progress


def seconds_to(progress, share):
    return next((s for s, found in progress if found >= share), math.inf)


def headline(path, table):
    total_s = sum(processes[0].total_s for processes in table.results.values())
    game = Game(table, memory_cap_bytes=memory_cap(table), seed=0)
    return (
        f"\n### {path.stem}: {len(table.results)} plans on {table.hardware.device_name}, "
        f"{total_s / 60:.0f} device-minutes, best {game.best:,.0f} samples/s\n"
    )


def memory_cap(table):
    return SearchSettings(budget_s=1.0).memory_cap_bytes(table.hardware)


def markdown(games):
    lines = [
        "| strategy | within 5 %: median | 90 % | within 2 %: median | 90 % | seeds within 2 % |",
        "|---|---|---|---|---|---|",
    ]
    for name, progresses in games.items():
        cells = [seconds(x) for share in SHARES for x in spread(progresses, share)]
        reached = sum(math.isfinite(seconds_to(p, SHARES[-1])) for p in progresses)
        lines.append(f"| {name} | {' | '.join(cells)} | {reached} of {len(progresses)} |")
    return "\n".join(lines)


def spread(progresses, share):
    """Return the median and the 90th percentile (nearest rank) of the seconds."""
    times = sorted(seconds_to(progress, share) for progress in progresses)
    return statistics.median_high(times), times[math.ceil(0.9 * len(times)) - 1]


def seconds(value):
    return f"{value:.0f} s" if math.isfinite(value) else "never"


def verdict(games):
    """Return a sentence that compares the agent with the best of Optuna's samplers and random."""
    if not {"autotune", "random", *SAMPLERS} <= games.keys():
        return ""
    ours, ninetieth = spread(games["autotune"], 0.98)
    sampler = min(spread(games[name], 0.98)[0] for name in SAMPLERS)
    chance = spread(games["random"], 0.98)[0]
    return (
        f"\nmedian to within 2 %: {ours / sampler:.2f} of the best general sampler's, "
        f"{ours / chance:.2f} of random's; 90th percentile {ninetieth / ours:.2f} x the median"
    )


def draw(games, table, path):
    """Draw the median over seeds of the best so far against device-seconds."""
    import matplotlib as mpl  # noqa: PLC0415  only plots need it

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "autotune"
    from matplotlib import pyplot as plt  # noqa: PLC0415  after the choice of the backend

    figure, axes = plt.subplots(figsize=(7, 4))
    end = max(s for runs in games.values() for progress in runs for s, _ in progress)
    moments = [end ** (k / 199) for k in range(200)]
    for name, progresses in games.items():
        found = [median_at(progresses, moment) for moment in moments]
        axes.plot(moments, found, label=name, drawstyle="steps-post")
    axes.set(
        xscale="log",
        xlabel="device-seconds",
        ylabel="best so far / best of the table",
        title=f"{table.name} on {table.hardware.device_name}",
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    print(f"\nplot: {path}")


def median_at(progresses, moment):
    return statistics.median(
        max((share for s, share in progress if s <= moment), default=0.0)
        for progress in progresses
    )


if __name__ == "__main__":
    main()
