"""The patients that a site read last, for the next study that sees the same of them."""

import json

from erosion.client.dataset.load import Patients, checked_for, read_patients
from erosion.client.site_file import Site
from erosion.common.study.study import Study


class KeptPatients:
    """Reads the patients once for all folds of a study, and for every study alike.

    A file that has changed is read again. Whether what a query or a database gives has changed
    cannot be told without reading it: it is read again for another study or run, and not for the
    folds of one.
    """

    def __init__(self, site: Site) -> None:
        """Nothing is read yet."""
        self._site = site
        self._patients: Patients | None = None
        self._seen = ""  # what of the patients was read
        self._study = ""  # digest of the study that they were read for
        self._run: str | None = None  # likewise

    def of(self, study: Study, run: str | None = "") -> Patients:
        """The patients as the study sees them. Raises DataError as `load_patients` does.

        `run`: that they are for; None: for none, as where columns are described.
        """
        # Before reading: a file that changes meanwhile is another revision the next time.
        revision = self._site.data.revision()
        column = study.evaluation.split_column
        seen = json.dumps([revision, column, study.task.model_dump_json()])
        same_run = run is not None and run == self._run
        is_fold = study.fold is not None or study.digest == self._study
        if (
            self._patients is None
            or seen != self._seen
            or (revision is None and not (same_run and is_fold))
        ):
            self._patients = None  # so that two of them are never in memory
            self._patients = read_patients(self._site.data, study)
            self._seen, self._study, self._run = seen, study.digest, run
        return checked_for(study, self._site, self._patients)
