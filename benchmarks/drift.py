"""What the good and bad minutes of a machine did to a table, told by what was measured again.

Whoever shares the host of a virtual machine makes every plan slower or faster for a while. Plans
that were measured several times, minutes or days apart, show by how much. What their neighbours in
time have in common is taken out of each measurement before plans are compared: else the best plan
of a table is the one that was measured at the best time. This is a median polish (Tukey 1977) of
plans and times.
"""

import statistics

_PROCESSES = 3  # of a plan, at the least, to say what its minutes were like
_NEAR = 12  # measurements of such plans, the nearest in time, that say it
_ROUNDS = 20


def steady(rows, value):
    """Return the median of each plan's processes, each without the drift of its time.

    Args:
        rows: plan and result, in the order in which they were measured.
        value: of a result, 0 where it failed.
    """
    values = [value(result) for _, result in rows]
    drift = [1.0] * len(rows)
    at = {}
    for index, (plan, _) in enumerate(rows):
        at.setdefault(plan, []).append(index)
    repeated = sorted(
        index
        for indices in at.values()
        for index in indices
        if len(indices) >= _PROCESSES and all(values[i] for i in indices)
    )
    for _ in range(_ROUNDS if repeated else 0):
        level = _levels(at, values, drift)
        off = {i: values[i] / level[rows[i][0]] for i in repeated}
        for index in range(len(rows)):
            near = sorted(repeated, key=lambda other: abs(other - index))[:_NEAR]
            drift[index] = statistics.median(off[i] for i in near)
    return _levels(at, values, drift)


def _levels(at, values, drift):
    return {
        plan: statistics.median(values[i] / drift[i] for i in indices)
        for plan, indices in at.items()
    }
