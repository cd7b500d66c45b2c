"""What `test_processes.py` starts in two processes: runs that end, that are stopped, resumed, and that diverge.

torchrun --nproc_per_node 2 several_processes.py FOLDER
"""

import gc
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import toys
from accelerate import PartialState

from spikezip.measure.processes import leave
from spikezip.training import DivergedError, InterruptedRunError, Trained

STAGES: dict[str, Any] = {
    "relu": toys.stage(epochs=2, evaluate_every=0, epsilon=1e-3),
    "quantize": {"batches": 2},
    "qat": toys.stage(epochs=2, learning_rate=1e-3, distill={}, micro_batch_size=8, epsilon=1e-3),
    "convert": True,
    "verify": {"samples": 8},
}
RANDOM = {"dropout": 0.1, "augmentation": {"crop_padding": 1, "mixup": 0.8}}


def whole(folder: Path) -> Trained:
    """37 images: the last batch of an evaluation is not the same on both processes."""
    return toys.run(toys.vit(), STAGES, toys.images(train=104, test=37), folder)


def random(folder: Path, **more: Any) -> Trained:
    stages = {"relu": toys.stage(epochs=2, **RANDOM)}
    return toys.run(toys.vit(), stages, toys.images(train=104, test=37), folder, **more)


def interrupted(folder: Path) -> str:
    """The signal reaches the first process only: the other must hear of it."""
    try:
        random(folder, progress=toys.stop_at("relu", 3, lambda: os.kill(os.getpid(), signal.SIGINT)))
    except InterruptedRunError as error:
        return str(error)
    return "not interrupted"


def resumed(folder: Path) -> dict[str, float] | None:
    try:
        return sums(random(folder, resume=True).model)
    except RuntimeError as error:
        if "tagged with cpu:" in str(error):  # older transformers cannot resume several processes on the CPU
            return None
        raise


def diverged(folder: Path) -> str:
    model = toys.vit()
    with torch.no_grad():
        model.classifier.weight[0, 0] = float("inf")
    try:
        toys.run(model, {"relu": toys.stage()}, toys.images(train=64), folder)
    except DivergedError as error:
        return str(error)
    return "not diverged"


def sums(model: torch.nn.Module) -> dict[str, float]:
    return {name: value.double().sum().item() for name, value in model.state_dict().items()}


def main(home: Path) -> None:
    gc.freeze()  # every stage has all that there is looked through
    rank = PartialState(cpu=True).process_index
    result = whole(home / "two")
    said = {
        "weights": sums(result.qann),
        "metrics": result.metrics,
        "random": sums(random(home / "random").model),
        "seed": torch.initial_seed(),
        "interrupted": interrupted(home / "stopped"),
        "resumed": resumed(home / "stopped"),
        "diverged": diverged(home / "diverged"),
    }
    (home / f"rank{rank}.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
