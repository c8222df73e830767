"""Removes the drift of a machine from the measurements of a recorded table.

Other users of a virtual machine's host make all plans slower or faster for a while. Plans that
were measured several times, minutes or days apart, show by how much. The deviation that
measurements of about the same time have in common is removed from each of them before plans are
compared; else the best plan of a table is one that was measured at a good time. The method is a
median polish (Tukey 1977) over plans and times.
"""

import statistics

_PROCESSES = 3  # of a plan, at the least, to say what its minutes were like
_NEAR = 12  # measurements of such plans, the nearest in time, that say it
_ROUNDS = 20


def steady(rows, value):
    """Return {plan: median value over its processes}, with the drift removed.

    Args:
        rows: (plan, result) pairs in the order of measuring.
        value: returns the value of a result, 0 for a failed one.
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
