"""A run's model with scikit-learn's estimator interface, for pandas frames."""

import html
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from erosion.interface.arguments import check, check_path
from erosion.interface.run import pandas
from erosion_client.dataset.sources.table_file import TableFile
from erosion_client.evaluation.explanation import encoded_columns, linear_effects
from erosion_client.evaluation.predict import SavedModel, apply_model, load_saved_model
from erosion_common.errors import DataError, ErosionError
from erosion_common.settings.packages import faults_of_packages

if TYPE_CHECKING:
    import pandas as pd


def site_folder_of(site: str | os.PathLike[str] | None) -> Path | None:
    """Return where the site of that file keeps its state; None for None. Raises ErosionError."""
    from erosion_client.site_file import load_site

    check_path("site", site, or_none=True)
    return None if site is None else load_site(Path(site)).consent_folder


@faults_of_packages()
def load_model(
    run_folder: str | os.PathLike[str],
    arm: str | None = None,
    weights: str | os.PathLike[str] = "weights",
    site: str | os.PathLike[str] | None = None,
) -> "Model":
    """Return the model of a finished run.

    It warns where it predicts patients that it was trained on: the user's site knows them.

    Args:
        run_folder: For example runs/20260101T120000-mine.
        arm: Which arm's; by default the one that the verdict favours, or else the study's first.

        weights: The folder with the file that the model started from, where it has one.
        site: The user's site file; by default that of a testbed's run.

    Raises:
        ErosionError: Where there is no such model, or one of another version.
    """
    check_path("run_folder", run_folder)
    check("arm", arm, "an arm's name or None", str, type(None))
    check_path("weights", weights)
    saved = load_saved_model(Path(run_folder), arm, Path(weights), site_folder_of(site))
    return ESTIMATORS[saved.task.predicts](saved)


class Model(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A trained model; it takes frames with the study's feature columns.

    Attributes:
        feature_names_in_: The columns that a frame needs. Others are ignored.
        study: The study's name.
        arm: The arm that the model was trained in.
    """

    def __init__(self, saved: SavedModel) -> None:
        """Use `load_model`."""
        self.saved = saved
        self.study, self.arm = saved.card.study, saved.card.arm
        self.feature_names_in_ = np.array([f.name for f in saved.task.features], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)

    def fit(self, frame: Any = None, target: Any = None) -> Self:
        """Raise ErosionError: training takes a study. scikit-learn looks for this method."""
        del frame, target
        raise ErosionError(
            "A run's model is trained already, and cross-validation would test it on patients"
            " that it was trained on",
            remedy="Train with erosion.simulate or erosion.testbed; measure with"
            " run.predictions().",
        )

    @property
    def coef_(self) -> NDArray[np.float64]:
        """A linear model's effect of one unit of each of `coef_names_`: (q,).

        On the log odds of the second class, on the number, on the log rate of a count, or on the
        mean log odds of the hazards, within the range in which the model does not clip. An
        interaction's is of two columns as scaled, and each of them has its own effect where the
        other is at its mean, or its first
        category. There is no such attribute elsewhere.
        """
        card = self.saved.card
        effects = linear_effects(card, self.saved.predictor)
        if effects is None:
            raise AttributeError(
                f"The model {card.model.name!r} of {self.arm} has no coefficients."
            )
        return effects / (card.scaling.deviation if card.scaling else 1.0)

    @property
    def coef_names_(self) -> NDArray[np.object_]:
        """What each coefficient is of: a number, or a category as "column=category": (q,)."""
        columns = encoded_columns(self.saved.task)
        names = [c.feature if c.category is None else f"{c.feature}={c.category}" for c in columns]
        return np.array(names, dtype=object)

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return f"<code>{html.escape(repr(self))}</code>"

    def predict(self, frame: "pd.DataFrame") -> NDArray[Any]:
        """Return what the study's task predicts for each row.

        A row that lacks a value which the study drops patients for has no prediction: NaN, or None
        where classes are predicted. Raises ErosionError for a frame that does not meet the study's
        data contract, with every problem.
        """
        return self._predictions(frame)

    def _predictions(self, frame: "pd.DataFrame") -> NDArray[np.float64]:
        """Return the task's predictions: (n, k), rows of NaN where there is none."""
        check_is_fitted(self)
        if not isinstance(frame, pandas().DataFrame):
            kind = type(frame)
            raise DataError(
                f"A {kind.__module__.partition('.')[0]}.{kind.__name__} is no pandas DataFrame",
                remedy="Give one (`to_pandas()` of Polars or Arrow makes it) with the columns"
                f" {', '.join(self.feature_names_in_[:6])} ...",
            )
        columns = set(frame.columns)  # with two levels, those are pairs
        known = [name for name in self.feature_names_in_ if name in columns]
        if not known:
            raise DataError(
                "The frame has none of the columns that the model needs:"
                f" {', '.join(self.feature_names_in_[:6])} ..."
            )
        if missing := [name for name in self.feature_names_in_ if name not in columns]:
            raise DataError(
                f"The frame lacks {len(missing)} of the {self.n_features_in_} columns that the"
                f" model needs: {', '.join(missing)}",
                remedy="Rename columns of it, or add them; a value that is not known is NaN or"
                " None.",
            )
        with tempfile.TemporaryDirectory() as folder:
            path, wanted = Path(folder) / "frame.parquet", frame[known]
            wanted.attrs = {}  # of any kind; they would be written, too
            try:
                wanted.to_parquet(path, index=False)
            except (ValueError, TypeError, OverflowError, NotImplementedError) as problem:
                raise DataError(
                    f"The frame cannot be read: {problem}",
                    remedy="Give each column once, with numbers or text and not both.",
                ) from None
            try:
                applied = apply_model(self.saved, TableFile(path=path))
            except DataError as problem:
                told = str(problem).replace(f"Data file {path}", "The frame")
                remedy = "(A frame has no site file: rename columns and replace values in it.)"
                raise DataError(f"{told}\n  {remedy}") from None
        if applied.note_of_trained:
            warnings.warn(applied.note_of_trained, stacklevel=3)
        predictions = np.full((len(frame), applied.predictions.shape[1]), np.nan)
        predictions[applied.rows] = applied.predictions
        return predictions

    def __sklearn_clone__(self) -> Self:
        return self  # as trained

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.arm} in {self.study}>"


class Classifier(ClassifierMixin, Model):  # type: ignore[misc]  # as above
    """A trained classifier.

    Attributes:
        classes_: The classes' names, in the order of the columns of `predict_proba`.
    """

    def __init__(self, saved: SavedModel) -> None:
        """Use `load_model`."""
        super().__init__(saved)
        classes = getattr(saved.task, "classes")  # noqa: B009 - of this task alone
        self.classes_ = np.array([label.name for label in classes], dtype=object)

    def predict_proba(self, frame: "pd.DataFrame") -> NDArray[np.float64]:
        """Return each class's probability for each row: (n, classes)."""
        return self._predictions(frame)

    def predict(self, frame: "pd.DataFrame") -> NDArray[Any]:
        """Return the likeliest class's name for each row; None where `predict_proba` is NaN."""
        probabilities = self.predict_proba(frame)
        known = ~np.isnan(probabilities).any(axis=1)
        found = np.full(len(probabilities), None, dtype=object)
        found[known] = self.classes_[probabilities[known].argmax(axis=1)]
        return found


class Regressor(RegressorMixin, Model):  # type: ignore[misc]  # as above
    """A trained model of a number."""

    def predict(self, frame: "pd.DataFrame") -> NDArray[np.float64]:
        """Return the number for each row, in the study's unit: (n,)."""
        predicted: NDArray[np.float64] = self._predictions(frame)[:, 0]
        return predicted


class SurvivalModel(Model):
    """A trained model of the time to an event."""

    def predict_event_free(self, frame: "pd.DataFrame") -> NDArray[np.float64]:
        """Return the chance of no event by each of the study's cut points: (n, points)."""
        return self._predictions(frame)

    def predict(self, frame: "pd.DataFrame") -> NDArray[np.float64]:
        """Return the risk: the chance of the event by the last cut point: (n,)."""
        return 1 - self._predictions(frame)[:, -1]


ESTIMATORS: Mapping[str, type[Model]] = {  # by what the task predicts
    "classes": Classifier,
    "number": Regressor,
    "times": SurvivalModel,
    "other": Model,
}
