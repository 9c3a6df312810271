"""A model as one ONNX file: from a patient's columns, or pixels, to what `predict` writes.

Numbers are float64 with NaN for a missing value; categories are text, "" for a missing one; images
are uint8. Each has the name of its column, and there is a patient in every row. A patient whom
`predict` would refuse or leave out (an unknown category, a value outside the range) gets NaN.
"""

import json
import logging
import warnings
from math import inf, nan
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from erosion_common.errors import CheckpointError, ModelError
from erosion_common.support.software import install_command
from erosion_common.tasks.features import CategoryFeature, NumberFeature
from erosion_common.tasks.inputs import ImageTask, TabularTask
from erosion_common.tasks.preparations import ABSENT
from erosion_server.export import saved_run
from erosion_server.export.saved_run import SavedRun

OPSET, ML_OPSET = 20, 4  # of ONNX 1.15 (2023) and ai.onnx.ml with it: what programs in use can run
IMAGE = "image"
INSIDE = "_/"  # before the names of everything that is no input or output
MISSING, UNKNOWN = -1, -2
TOLERANCE = 1e-5  # relative to the largest of 1, the prediction, and the predictions' spread
TRIED = 50  # made-up patients of a table
RARELY = 0.04


class _FromTable(nn.Module):
    """Encodes a table's columns as `table_inputs` does; says who can be predicted."""

    # For each input column:
    of_feature: Tensor
    of_mean: Tensor
    of_deviation: Tensor
    of_farthest: Tensor
    of_fill: Tensor
    of_is_number: Tensor
    of_wanted: Tensor
    of_knots: Tensor  # (cubes, columns); without any, the number itself counts
    of_factors: Tensor
    of_is_plain: Tensor
    # for each feature:
    of_least: Tensor  # after winsorising
    of_most: Tensor
    of_is_log: Tensor
    of_lowest: Tensor
    of_highest: Tensor
    of_may_lack: Tensor
    of_missing: Tensor  # the code that says so; NaN where NaN does
    # and for each input column of an interaction:
    of_left: Tensor
    of_right: Tensor

    def __init__(self, saved: SavedRun, task: TabularTask) -> None:
        super().__init__()
        columns = saved_run.input_columns(saved.card, task)
        # Buffers: as constants of the graph they would be named after others' attributes.
        for name in ("feature", "mean", "deviation", "farthest", "fill"):
            self._keep(name, [getattr(column, name) for column in columns])
        self._keep("is_number", [column.code is None for column in columns])
        # ABSENT is no value of a number: it may be -1.
        wanted = [inf if c.code is None or c.code == ABSENT else float(c.code) for c in columns]
        self._keep("wanted", wanted)
        cubes = [(*column.cubes, *[(0.0, 0.0)] * 3)[:3] for column in columns]
        for name, place in (("knots", 0), ("factors", 1)):
            self._keep(name, [[cube[n][place] for cube in cubes] for n in range(3)])
        self._keep("is_plain", [not column.cubes for column in columns])
        kept = [getattr(feature, "winsorise", None) or (-inf, inf) for feature in task.features]
        self._keep("least", [low for low, _ in kept])
        self._keep("most", [high for _, high in kept])
        self._keep("is_log", [getattr(feature, "log", False) for feature in task.features])
        self.has_curves = any(column.cubes for column in columns)
        self.has_logarithms = any(getattr(feature, "log", False) for feature in task.features)
        ranges = [_allowed(feature) for feature in task.features]
        self._keep("lowest", [float(low) for low, _ in ranges])
        self._keep("highest", [float(high) for _, high in ranges])
        self._keep("may_lack", saved_run.may_be_missing(task))
        is_category = [isinstance(feature, CategoryFeature) for feature in task.features]
        self._keep("missing", [float(MISSING) if each else nan for each in is_category])
        products = task.products()
        self._keep("left", [each.left for each in products] or [0])
        self._keep("right", [each.right for each in products] or [0])
        self.has_products = bool(products)
        self.most_of_product = saved_run.farthest_product(saved.card)

    def _keep(self, name: str, values: list[Any]) -> None:
        kinds = {bool: torch.bool, int: torch.int64}
        self.register_buffer(
            f"of_{name}", torch.tensor(values, dtype=kinds.get(type(values[0]), torch.float64))
        )

    def forward(self, *columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (n, columns) float32, and (n,) who has a prediction."""
        raw = torch.stack([column.double() for column in columns], dim=1)
        is_missing = torch.isnan(raw) | (raw == self.of_missing)
        fits = (raw >= self.of_lowest) & (raw <= self.of_highest)
        has_prediction = (fits | (is_missing & self.of_may_lack)).all(dim=1)
        inner = torch.minimum(torch.maximum(raw, self.of_least), self.of_most)
        if self.has_logarithms:
            logarithm = torch.where(self.of_is_log, inner, 1.0).log()
            inner = torch.where(self.of_is_log, logarithm, inner)
        values = inner[:, self.of_feature]
        if self.has_curves:
            cubes = zip(self.of_knots, self.of_factors, strict=True)
            each = [factor * (values - knot).clamp(min=0) ** 3 for knot, factor in cubes]
            values = torch.where(self.of_is_plain, values, torch.stack(each).sum(dim=0))
        numbers = (values - self.of_mean) / self.of_deviation
        numbers = torch.minimum(torch.maximum(numbers, -self.of_farthest), self.of_farthest)
        encoded = torch.where(self.of_is_number, numbers, (values == self.of_wanted).double())
        encoded = torch.where(is_missing[:, self.of_feature], self.of_fill, encoded).float()
        if self.has_products:
            products = encoded[:, self.of_left] * encoded[:, self.of_right]
            products = products.clamp(-self.most_of_product, self.most_of_product)
            encoded = torch.cat([encoded, products], dim=1)
        return encoded, has_prediction


def _allowed(feature: NumberFeature | CategoryFeature) -> tuple[float, float]:
    if isinstance(feature, CategoryFeature):
        return 0.0, len(feature.categories) - 1.0
    return feature.range or (-saved_run.LARGEST_NUMBER, saved_run.LARGEST_NUMBER)


class _FromPixels(nn.Module):
    """Scales pixels as `image_inputs` does."""

    of_mean: Tensor
    of_deviation: Tensor

    def __init__(self, task: ImageTask) -> None:
        super().__init__()
        shape = (1, -1, *([1] * (len(task.shape) - 1)))
        self.register_buffer("of_mean", torch.tensor(task.mean).view(shape))
        self.register_buffer("of_deviation", torch.tensor(task.deviation).view(shape))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs (n, *shape) float32, and (n,) True."""
        inputs = (pixels.float() / 255 - self.of_mean) / self.of_deviation
        return inputs, torch.ones_like(pixels.flatten(1)[:, 0], dtype=torch.bool)


class _Whole(nn.Module):
    """From raw columns to each of the numbers that `predict` writes, (n,) float64."""

    def __init__(self, saved: SavedRun) -> None:
        super().__init__()
        task = saved.card.task
        if isinstance(task, TabularTask):
            self.read: nn.Module = _FromTable(saved, task)
        else:
            assert isinstance(task, ImageTask)
            self.read = _FromPixels(task)
        self.body, self.members = saved.body, nn.ModuleList(saved.members)
        self.shares = saved.shares
        self.task = task

    def forward(self, *columns: Tensor) -> tuple[Tensor, ...]:
        """Return the mean of the members' predictions; NaN for who has none."""
        inputs, has_prediction = self.read(*columns)
        seen = self.body(inputs)
        predictions = torch.zeros((), dtype=torch.float64)
        for share, member in zip(self.shares, self.members, strict=True):
            outputs = member(seen.to(next(member.parameters()).dtype)).double()
            predictions = predictions + share * self.task.predictions(outputs)
        predictions = torch.where(has_prediction[:, None], predictions, torch.nan)
        found = predictions.unbind(dim=1)
        return (*found, 1 - found[-1]) if self.task.predicts == "times" else found


def as_onnx(saved: SavedRun) -> bytes:
    """Return the file, tried out on made-up patients. Raises CheckpointError, ModelError."""
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ModuleNotFoundError:
        raise ModelError(f"ONNX needs packages: {install_command('onnx')}") from None
    task, outputs = saved.card.task, saved_run.output_names(saved.card)
    names = [f.name for f in task.features] if isinstance(task, TabularTask) else [IMAGE]
    if twice := sorted({*names} & {*outputs}):
        raise CheckpointError(
            f"{', '.join(twice)} would name both an input and a result; ONNX has each name once."
        )
    whole, made_up = _Whole(saved).eval(), _made_up(task)
    try:
        inner = _traced(whole, made_up)
        model = _named(inner, saved, names, outputs)
        onnx.checker.check_model(model, full_check=True)
        off = _difference(model, whole, names, task, made_up)
        content: bytes = model.SerializeToString()
    except Exception as problem:  # noqa: BLE001 - of the exporter, or of a package's model
        first = str(problem).strip().partition("\n")[0][:200]
        raise CheckpointError(
            f"The model {saved.card.model.described()} cannot be written as ONNX"
            f" ({type(problem).__name__}: {first})",
            remedy="Use `erosion predict`.",
        ) from None
    if not off <= TOLERANCE:
        raise CheckpointError(
            f"As ONNX the model would predict otherwise, by {off:.2g}",
            remedy="Use `erosion predict`.",
        )
    return content


def _traced(whole: _Whole, columns: tuple[Tensor, ...]) -> Any:
    """Return torch's ONNX model of it, for any number of patients."""
    from onnxscript import opset20 as op

    def cumulative_product(values: Any, dim: int, dtype: int = -1) -> Any:
        """torch has none for ONNX; of survival, of positive numbers."""
        del dtype
        return op.Exp(op.CumSum(op.Log(values), op.Constant(value_int=dim)))

    patients = torch.export.Dim("patients")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        exported = torch.onnx.export(
            whole,
            columns,
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes={"columns": tuple({0: patients} for _ in columns)},
            custom_translation_table={torch.ops.aten.cumprod.default: cumulative_product},
            verbose=False,
        )
    return exported.model_proto


def _named(inner: Any, saved: SavedRun, names: list[str], outputs: list[str]) -> Any:
    """Return the model between the columns' names; categories become codes within it."""
    from onnx import TensorProto, compose, helper

    model = compose.add_prefix(inner, INSIDE)
    graph, task = model.graph, saved.card.task
    before, inputs, after, results = [], [], [], []
    for place, (name, inside) in enumerate(zip(names, graph.input, strict=True)):
        feature = task.features[place] if isinstance(task, TabularTask) else None
        kind = inside.type.tensor_type.elem_type
        if isinstance(feature, CategoryFeature):
            texts = ["", *feature.categories]
            codes = [MISSING, *range(len(feature.categories))]
            if "" in feature.categories:
                texts, codes = texts[1:], codes[1:]
            before.append(
                helper.make_node(
                    "LabelEncoder",
                    [name],
                    [inside.name],
                    domain="ai.onnx.ml",
                    keys_strings=texts,
                    values_int64s=codes,
                    default_int64=UNKNOWN,
                )
            )
            kind = TensorProto.STRING
        else:
            before.append(helper.make_node("Identity", [name], [inside.name]))
        shape = ["patients", *(d.dim_value for d in inside.type.tensor_type.shape.dim[1:])]
        info = helper.make_tensor_value_info(name, kind, shape)
        info.doc_string = _described(feature)
        inputs.append(info)
    for name, inside in zip(outputs, graph.output, strict=True):
        after.append(helper.make_node("Identity", [inside.name], [name]))
        results.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["patients"]))
    for node in graph.node:  # the exporter notes from which lines of this program it comes
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    nodes = [*before, *graph.node, *after]
    whole = helper.make_graph(
        nodes, saved.card.study, inputs, results, initializer=graph.initializer
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    made = helper.make_model(
        whole, opset_imports=opsets, producer_name="erosion", ir_version=inner.ir_version
    )
    card = saved.card
    about = {
        "classes": json.dumps([label.name for label in getattr(task, "classes", ())]),
        "study": card.study,
        "arm": card.arm,
        "made_for": card.user,
        "sha256": card.sha256,
        "model.json": card.model_dump_json(),
        "warnings": " ".join(saved.warnings()),
    }
    helper.set_model_props(made, about)
    return made


def _described(feature: NumberFeature | CategoryFeature | None) -> str:
    if feature is None:
        return "pixels, 0 to 255"
    if isinstance(feature, CategoryFeature):
        return f"one of {', '.join(feature.categories)}"
    said = feature.unit or "number"
    return (
        said if feature.range is None else f"{said}, {feature.range[0]:g} to {feature.range[1]:g}"
    )


def _made_up(task: Any) -> tuple[Tensor, ...]:
    """Return the columns of patients of whom a few lack a value, or have an unknown category."""
    random = np.random.default_rng(0)
    if isinstance(task, ImageTask):
        pixels = random.integers(0, 256, (2, *task.shape), dtype=np.uint8)
        return (torch.from_numpy(pixels),)
    columns = []
    # Of many columns everybody would lack one, and nothing be tried: the first half is complete.
    rarely = np.where(np.arange(TRIED) < TRIED // 2, 0.0, RARELY)
    for feature in task.features:
        if isinstance(feature, CategoryFeature):
            codes = random.integers(0, len(feature.categories), TRIED)
            if "" not in feature.categories:  # else it is no missing value
                codes[random.random(TRIED) < rarely] = MISSING
            codes[random.random(TRIED) < rarely] = UNKNOWN
            columns.append(torch.from_numpy(codes))
            continue
        low, high = feature.range or (-3.0, 3.0)
        values = random.uniform(low, high, TRIED)
        values[random.random(TRIED) < rarely] = np.nan
        columns.append(torch.from_numpy(values))
    return tuple(columns)


def _difference(
    model: Any, whole: _Whole, names: list[str], task: Any, columns: tuple[Tensor, ...]
) -> float:
    """Return the largest difference of the ONNX file's predictions, by ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    asked: dict[str, NDArray[Any]] = {}
    for place, (name, column) in enumerate(zip(names, columns, strict=True)):
        asked[name] = column.numpy()
        feature = task.features[place] if isinstance(task, TabularTask) else None
        if isinstance(feature, CategoryFeature):
            texts = [*feature.categories, "?", ""]  # those of UNKNOWN and MISSING come last
            asked[name] = np.array([texts[code] for code in column.tolist()], dtype=object)
    found = np.stack(ReferenceEvaluator(model).run(None, asked))
    with torch.no_grad():
        expected = torch.stack(whole(*columns)).numpy()
    if not np.array_equal(np.isnan(found), np.isnan(expected)):
        return inf
    has_prediction = ~np.isnan(expected[0])
    return relative_difference(found[:, has_prediction], expected[:, has_prediction])


def relative_difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference of predictions (outputs, n), as `TOLERANCE` has it."""
    if not expected.size:
        return 0.0
    # A prediction near 0 of an outcome in thousands is a difference of two large numbers.
    low, high = np.percentile(expected, [25, 75], axis=1, keepdims=True)
    scale = np.maximum(np.maximum(1.0, high - low), np.abs(expected))
    return float((np.abs(found - expected) / scale).max())
