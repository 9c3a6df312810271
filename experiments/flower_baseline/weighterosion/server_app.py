"""One rule for one user."""

from typing import Any

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from erosion.flower import Personalized
from erosion.sources.titanic import BATCH_SIZE
from weighterosion.task import first_parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run it; Flower's log ends with accuracies and weights of all rounds."""
    settings = context.run_config
    of_rule: dict[str, dict[str, Any]] = {
        "local": {},
        "fedavg": {"weighting": "uniform"},
        "weight_erosion": {
            "distance_penalty": float(settings["distance-penalty"]),
            "size_penalty": float(settings["size-penalty"]),
            "size_unit": "completed_passes",  # as the authors' code
            "batch_size": BATCH_SIZE[settings["split"]],
        },
    }
    rule, rounds = str(settings["rule"]), int(settings["num-rounds"])
    strategy = Personalized(
        rule,
        user=int(settings["user"]),
        num_rounds=rounds,
        settings=of_rule[rule],
        min_train_nodes=4,
        min_available_nodes=4,
    )
    first = ArrayRecord(first_parameters(int(settings["seed"])))
    strategy.start(grid=grid, initial_arrays=first, num_rounds=rounds)
