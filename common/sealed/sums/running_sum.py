"""The sum of masked updates, added up as they come: none of them is kept."""

from collections.abc import Callable, Collection
from typing import cast

from erosion.common.aggregation.cohort import HospitalName
from erosion.common.algorithms.base import SiteAnswer
from erosion.common.sealed import legs
from erosion.common.sealed.masks.mask import Words
from erosion.common.sealed.roster import Receipt, words_hash


class RunningSum:
    """Of one round."""

    def __init__(
        self,
        takes: Callable[[HospitalName, Receipt], bool],
        only: Collection[HospitalName] | None,
    ) -> None:
        """`only`: whose updates are added; None: of everybody whose receipt it `takes`."""
        self._takes, self._only = takes, only
        self._total: Words | None = None  # modulo 2^32: (dim,)
        self.receipts: dict[HospitalName, Receipt] = {}  # of those who are in it
        self.seeds: dict[HospitalName, bytes] = {}  # hashes of their masks' seeds

    @property
    def total(self) -> Words:
        """Of one update or more."""
        if self._total is None:
            raise ValueError("nothing was added yet")
        return self._total

    def add(self, name: HospitalName, answer: SiteAnswer) -> SiteAnswer:
        """Add an answer to leg 3, and return it without its words. The first become the sum."""
        words = cast(Words, answer.tensors[legs.WORDS].numpy())
        if self._only is None or name in self._only:
            said = answer.values
            receipt = Receipt(words_hash(words), said.rules.rules, said.signature)
            if not self._takes(name, receipt):
                return SiteAnswer({}, answer.values)
            self.receipts[name] = receipt
            self.seeds[name] = answer.values.seed
            if self._total is None:
                self._total = words
            else:
                self._total += words
        return SiteAnswer({}, answer.values)
