"""Faults inside somebody else's model, while it is trained on patients."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from erosion.common.errors import ErosionError, SiteError
from erosion.common.learning.networks import ModelBase

logger = logging.getLogger("erosion.site")


@contextmanager
def faults_of(model: ModelBase) -> Iterator[None]:
    """Turn what an installed model raises into a SiteError, whose text stays at the site.

    A model of the program's own is left alone: what it raised would be a fault of the program.
    """
    try:
        yield
    except ErosionError:
        raise
    except Exception as problem:
        if not model.runs_installed_code:
            raise
        logger.debug("the model %s failed", model.described(), exc_info=True)
        reason = (str(problem).strip().splitlines() or [""])[0][:300]
        raise SiteError(
            f"The model {model.described()} failed on this hospital's patients"
            f" ({type(problem).__name__}: {reason}). Correct its package, and tell the study's"
            " user; -v shows where."
        ) from None
