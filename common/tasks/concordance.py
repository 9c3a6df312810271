"""Concordance of predicted risks with survival times (Harrell et al. 1996, Uno et al. 2011).

A pair of patients is comparable where one is known to have had the event before the other: it had
the event, and the other was followed for longer, or for as long without one. Of these pairs, the
share is measured in which the one with the earlier event has the higher risk.
"""

import numpy as np

from erosion.common.tasks.task import Floats, Targets

TIED = 1e-8  # risks that differ by no more, as in scikit-survival; such a pair is half right
CHUNK = 4_000_000  # pairs in memory at a time


def concordances(risks: Floats, targets: Targets, weights: Floats, counts: Floats) -> Floats:
    """For each row of `counts`, and for each resample: (rows, resamples), NaN without any pair.

    `risks`: (n,). `targets`: (n, 2), time and 1 for an event. `weights`: (resamples, n), how often
    each patient was drawn. `counts`: (rows, n), what a pair counts, by the patient whose event it
    is about. Copies of one patient are no comparable pair.
    """
    times, with_event = targets[:, 0], targets[:, 1] > 0
    events = np.flatnonzero(with_event)
    drawn = weights.astype(np.float32)  # sums of halves, exact up to eight million patients
    right, all_pairs = np.zeros((2, len(counts), len(weights)))
    at_a_time = max(1, CHUNK // max(len(weights), len(risks)))
    for start in range(0, len(events), at_a_time):
        some = events[start : start + at_a_time]
        longer = times > times[some, None]
        comparable = longer | ((times == times[some, None]) & ~with_event)  # (some, n)
        lead = risks[some, None] - risks
        scores = comparable * np.where(np.abs(lead) <= TIED, 0.5, lead > 0)
        for total, pairs in ((right, scores), (all_pairs, comparable)):
            of_event = weights[:, some] * (drawn @ pairs.T.astype(np.float32))
            total += counts[:, some] @ of_event.T
    shares: Floats = np.divide(
        right, all_pairs, out=np.full_like(right, np.nan), where=all_pairs > 0
    )
    return shares
