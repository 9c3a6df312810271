"""The numbers of messages, each within its bounds."""

from typing import Annotated

from pydantic import Field

LARGEST_FIGURE = 1e100  # beyond what a float32 model can err by; pages are drawn of figures
LARGEST_COUNT = 2**53  # beyond, a count is no longer exact as a float64
MOST_COLUMNS = 100_000  # encoded ones; their sums and means travel in a head

Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Figure = Annotated[float, Field(ge=-LARGEST_FIGURE, le=LARGEST_FIGURE)]
