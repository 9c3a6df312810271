"""Compares a sealed run with the plain one: parameters, weights, distances and figures.

    python -m experiments.benchmarks.sealed_exactness sealed --json sealed_exactness.json

One arm of a study and `local` are simulated twice, with plain and with sealed rounds, from the same
seed. Pooled scaling is replaced by "local", which sealed studies need. Sealed sums are of four
hospitals or more, none with above half of the rest without any other: where a method wants
others, the runs diverge, and the first such round is reported.
"""

import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import stdev
from types import MappingProxyType
from typing import Any

import torch

from erosion.simulation.simulator import Simulation, simulate, timeless
from erosion.simulation.testbed import study_path
from erosion.simulation.testbed_sites import site_of
from erosion.sources import make_hospitals
from erosion_client.training.hospital import Hospital
from erosion_common.program.command import add_data_dir
from erosion_common.rounds.records import RoundRecord
from erosion_common.study.study import Study, load_study
from experiments.benchmarks.harness import parser_of, report
from experiments.program import run_program


@dataclass(frozen=True, slots=True)
class Apart:
    """The largest differences between the two runs."""

    rounds: int
    parameters: int  # of the model
    parted: int | None  # the first round with weights that no sealed sum could have; None: none
    parameter: float  # of any final parameter
    weight: float  # of any hospital after any round
    distance: float  # relative, of any hospital in any round
    distance_deviation: float  # standard deviation of those
    figures: dict[str, tuple[float, float]]  # plain and sealed, of the arm on the test patients


def one_arm(
    study: Study, arm: str, options: Mapping[str, Any], *, sealed: bool, **changes: Any
) -> Study:
    """That arm, with these options, and `local`, in plain or in sealed rounds."""
    content = study.model_dump(mode="json", exclude_none=True)
    content |= {"arms": {arm: {**content["arms"].get(arm, {}), **options}, "local": {}}, **changes}
    if study.scaling == "federated":
        content["scaling"] = "local"
    content["evaluation"] = {**content["evaluation"], "compare": [arm, "local"]}
    content["federation"] = {**content["federation"], "sealed": sealed, "quorum": 5}
    return Study.model_validate(content)


def compare(
    study: Study,
    arm: str,
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    data_dir: Path | None = None,
    images: int | None = None,
    **changes: Any,
) -> Apart:
    """Simulate both, on the same patients; `images`: that many of each hospital."""
    kinds = [one_arm(study, arm, options, sealed=sealed, **changes) for sealed in (False, True)]
    if images is not None:
        assert study.testbed is not None
        source = {**study.testbed.options, "max_images": images}
        study = study.model_copy(
            update={"testbed": study.testbed.model_copy(update={"options": source})}
        )
    with tempfile.TemporaryDirectory() as folder:
        files = make_hospitals(study, Path(folder), data_dir)
        runs = [
            simulate(
                kind,
                {name: Hospital(site_of(name, file)) for name, file in files.items()},
                clock=timeless,
            )
            for kind in kinds
        ]
    return _apart(study, arm, *runs)


def _apart(study: Study, arm: str, plain: Simulation, sealed: Simulation) -> Apart:
    ours, theirs = sealed.finals[arm].params, plain.finals[arm].params
    pairs = list(zip(plain.records[arm], sealed.records[arm], strict=True))
    distances = [error for records in pairs for error in _distances(*records)]
    before, after = (run.evaluation.arms[arm] for run in (plain, sealed))
    return Apart(
        rounds=len(pairs),
        parameters=len(ours),
        parted=next((r.round for p, r in pairs if r.note != p.note), None),
        parameter=float((ours.double() - theirs.double()).abs().max()),
        weight=max(difference for records in pairs for difference in _weights(*records)),
        distance=max(map(abs, distances)),
        distance_deviation=stdev(distances),
        figures={
            metric.name: (value, other)
            for metric in study.task.metrics
            if (value := before.get(metric.name)) is not None
            and (other := after.get(metric.name)) is not None
        },
    )


def _distances(plain: RoundRecord, sealed: RoundRecord) -> list[float]:
    found = []
    for name, entry in plain.hospitals.items():
        other = sealed.hospitals[name].distance
        if entry.distance and other is not None:
            found.append(other / entry.distance - 1)
    return found


def _weights(plain: RoundRecord, sealed: RoundRecord) -> list[float]:
    return [
        abs(entry.weight_after - other)
        for name, entry in plain.hospitals.items()
        if entry.weight_after is not None
        and (other := sealed.hospitals[name].weight_after) is not None
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line, simulate, and report."""
    parser = parser_of(__doc__)
    parser.add_argument("study", help="a study file, or the name of one that comes with erosion")
    parser.add_argument("--arm", default="weight_erosion", help="default: %(default)s")
    parser.add_argument(
        "--option", nargs="+", default=[], metavar="KEY=VALUE", help="of the arm, as in the file"
    )
    parser.add_argument("--rounds", type=int, help="default: the study's")
    parser.add_argument("--images", type=int, help="of each hospital, for a study of images")
    add_data_dir(parser)
    options = parser.parse_args(arguments)
    study = load_study(study_path(options.study))
    torch.set_num_threads(1)
    changes = {} if options.rounds is None else {"rounds": options.rounds}
    of_arm = tomllib.loads("\n".join(options.option))
    found = compare(
        study, options.arm, of_arm, data_dir=options.data_dir, images=options.images, **changes
    )
    print(
        f"{study.name}, {options.arm}, {found.rounds} rounds of {found.parameters} parameters,"
        f" seed {study.seed}: parameters {found.parameter:.2g}, weights {found.weight:.2g},"
        f" distances {found.distance:.2g} (standard deviation {found.distance_deviation:.2g}) apart"
    )
    if found.parted is not None:
        print(f"  from round {found.parted} on a sealed sum could not have the method's weights")
    for name, (plain, sealed) in found.figures.items():
        print(f"  {name:10} plain {plain:.4f}, sealed {sealed:.4f}")
    report([], json_path=options.json, details={"seed": study.seed, **asdict(found)})


if __name__ == "__main__":
    run_program(main)
