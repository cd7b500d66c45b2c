"""What `test_measuring_processes.py` starts in two processes.

torchrun --nproc_per_node 2 several_measuring.py FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

import measured
import torch
import torch.distributed as dist

from spikezip.errors import SpikezipError
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure
from spikezip.measure.processes import leave

SIZES = (2, 3, 1, 2, 2)  # five batches: the first process has three


def whole(**more: Any) -> Measurement:
    model, qann, snn = measured.networks()
    return measure(snn, measured.batches(*SIZES), qann, float_model=model, data="noise", **more)


def altered(**more: Any) -> Measurement:
    """A QANN with other codes: first in a batch of the second process, then in one of the first."""
    return measure(measured.networks()[2], measured.batches_with_differences(), measured.altered(), **more)


def stopped(folder: Path) -> str:
    """The first process is interrupted after its first batch; the other goes on to its end, and hears of it."""

    def progress(done: int) -> None:
        if dist.get_rank() == 0:
            raise KeyboardInterrupt

    try:
        whole(folder=folder, progress=progress)
    except KeyboardInterrupt:
        return "interrupted"
    except SpikezipError as error:
        return str(error)
    return "not stopped"


def bad_labels() -> str:
    """The last batch, which the first process has, holds a label that cannot be."""
    _, qann, snn = measured.networks()
    data = measured.batches(*SIZES)
    data[4]["labels"] = torch.tensor([0, 99])
    try:
        measure(snn, iter(data), qann)
    except SpikezipError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main(home: Path) -> None:
    seen: list[int] = []
    said = {
        "whole": whole(folder=home / "whole", progress=seen.append).to_json(),
        "seen": seen,
        "altered": altered(folder=home / "altered").to_json(),
        "stopped": stopped(home / "stopped"),
        "resumed": whole(folder=home / "stopped", resume=True).to_json(),
        "bad_labels": bad_labels(),
        "few": measure(measured.networks()[2], measured.batches(2)).data.samples,  # one batch for two processes
    }
    (home / f"rank{dist.get_rank()}.json").write_text(json.dumps(said))
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
