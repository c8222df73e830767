"""Where the level of a sequence of measurements is likely to change."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import ruptures

_LEAST_LENGTH = 3  # points of a level
# Absolute deviations, in standard deviations and logarithms of the number of points, that another
# level must save: of 1,000 sequences of 24 values with nothing but noise, 8 get a level so.
_PENALTY = 2.5
_LEAST_STD = 0.005  # of log values: smaller changes than some of these are of no interest
# Half a Gaussian's interquartile range in standard deviations, times sqrt(2), as differences of
# two values have twice the variance of one.
_MAD_OF_DIFFERENCES = 0.6745 * math.sqrt(2)


def level_starts(values: Sequence[float]) -> list[int]:
    """Return the positions at which a new level begins; the first one is not among them.

    PELT (Killick et al. 2012) with absolute deviations of the logarithms from a level's median, so
    that single outliers make no level. The noise is estimated from neighbours' differences, which
    changes of level hardly touch.

    Args:
        values: positive, in the order of time.
    """
    if len(values) < 2 * _LEAST_LENGTH:
        return []
    logs = np.log(np.array(values))
    differences = [abs(float(d)) for d in np.diff(logs)]
    std = max(_LEAST_STD, statistics.median(differences) / _MAD_OF_DIFFERENCES)
    search = ruptures.Pelt(model="l1", min_size=_LEAST_LENGTH, jump=1).fit(logs)
    ends = search.predict(pen=_PENALTY * std * math.log(len(values)))
    return [int(end) for end in ends[:-1]]
