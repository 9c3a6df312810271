"""The [federation] section of a study file: who must be there, and how long anyone waits."""

from typing import Literal

from pydantic import Field

from erosion.common.compression.codec import Compression
from erosion.common.settings.base import Settings


class Federation(Settings):
    """Who must be there, and how long anyone waits."""

    round_deadline_seconds: float = Field(default=120.0, gt=0, le=86_400)
    join_deadline_seconds: float = Field(default=60.0, gt=0, le=86_400)
    quorum: int = Field(default=2, ge=1)  # usable updates of a round, the user's own included
    start: Literal["all", "quorum"] = "all"  # whom the study waits for before its first round
    join: Literal["at_start", "any_time"] = "at_start"  # "any_time": who comes later takes part
    # from then on, so arms are compared on different hospitals; who was there may always come back
    max_update_norm: float | None = Field(default=None, gt=0)  # a larger update is rejected
    longest_wait_seconds: float | None = Field(default=None, gt=0)  # for the user or the quorum,
    # then the run stops, to be resumed; None: it waits for as long as that takes
    max_skipped_rounds: int = Field(default=3, ge=1)  # in a row, with all there that are needed;
    # then the run stops
    compression: Compression = "none"  # of parameters and updates, for slow lines: 2 bytes a number
    # or 1 in place of 4; the figures are then no longer exactly those without
    stop_on_misfit: bool = False  # ends before the first round where a hospital's figures of its
    # columns do not fit the others'
    sealed: bool = False  # nobody sees a single update; see `sealing`
