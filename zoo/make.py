"""Put the network of a run into the zoo: packed, with its card, and with recipe, metrics and certificate of results/.

    spikezip results add runs/sst2-minilm
    python zoo/make.py runs/sst2-minilm zoo/sst2-minilm --results results/runs/sst2-minilm \\
        --data-name sst2 --from "all-MiniLM-L6-v2 (Apache-2.0)"

Every figure on the card comes from there. Those of QANN and SNN are what was measured from the folder in the zoo, where
results/measured/NAME.json says so for all samples: on the card stands what a reader can measure.
"""

import argparse
import json
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from spikezip.measure.document import Measurement
from spikezip.results.checkpoints import as_measured

FIGURES = ("results.json", "certificate.json", "recipe.yaml")
MEASURED = Path(__file__).parents[1] / "results" / "measured"
LARGEST = 25_000_000  # bytes per network
CARD = """\
---
library_name: spikezip
tags: [spiking-neural-network, quantization]
---

# {name}

{note}. A quantized network (QANN) that `spikezip.convert` turns into a spiking network with the very same codes at
every site. {levels} levels per site, weights on a grid of {bits} bits{embedding};
{parameters:,} parameters, {size:.1f} MB.

| network | accuracy |
|---|---|
{rows}

{samples:,} test samples ({data_note}) Seed {seed}. Recipe: [`recipe.yaml`](recipe.yaml), figures of the run:
[`results.json`](results.json). Starting point: {origin}.
{measured}
**Certificate** of the run ([`certificate.json`](certificate.json)): {compared}.

```python
import spikezip

qann = spikezip.load("{folder}")
snn = spikezip.convert(qann)
```

```bash
spikezip convert {folder} snn/
spikezip measure snn/ --qann {folder} --data {data_name}:FOLDER{batch_size}   # the rows of QANN and SNN
spikezip verify {folder} snn/ --data {data_name}:FOLDER   # a certificate for your machine
spikezip train {folder}/recipe.yaml --set {needed}data=FOLDER output=runs/{name}   # trains it again
```
"""


def rows(metrics: dict[str, Any]) -> str:
    """The table of accuracies, in the order of the stages."""
    titles = {"finetune": "float", "relu": "float, ReLU", "quantize": "calibrated only", "qann": "**QANN**"}
    lines = [f"| {title} | {100 * metrics[key]['accuracy']:.2f} % |" for key, title in titles.items() if key in metrics]
    snn = metrics["snn"]
    lines += [f"| SNN at T = {steps} | {100 * value:.2f} % |" for steps, value in snn["accuracy_at"].items()]
    lines.append(f"| **SNN at equilibrium** | {100 * snn['accuracy']:.2f} % |")
    return "\n".join(lines)


def measurement(name: str, samples: int) -> Measurement | None:
    """What `spikezip measure` gave from the folder of this name, if it was asked for all samples."""
    file = MEASURED / f"{name}.json"
    found = Measurement.load(file) if file.is_file() else None
    return found if found is not None and found.data.samples == samples else None


def measured(one: Measurement, metrics: dict[str, Any], there: str) -> str:
    """Where QANN and SNN were measured, and what they had where the network was trained."""
    qann, settled = (100 * metrics[key]["accuracy"] for key in ("qann", "snn"))
    return f"""
**QANN and SNN** as measured from this folder: {compared(one.certificate)}.
`spikezip measure` gives these rows again on any machine (below).
On {there}, where the network was trained with version 0.1, the QANN had {qann:.2f} % and the SNN
at equilibrium {settled:.2f} %.
"""


def compared(certificate: dict[str, Any] | None) -> str:
    """A certificate in words."""
    if certificate is None:
        raise SystemExit("the measurement has no certificate: measure with --qann")
    exact = "exact" if certificate["exact"] else "NOT exact"
    samples, codes, sites, wrong = (certificate[key] for key in ("samples", "codes", "sites", "mismatches"))
    median, most, largest = (certificate["t_eq"][key] for key in ("median", "p99", "max"))
    return (
        f"{exact}, {samples:,} samples,\n{codes:,} codes compared at {sites} sites, {wrong} mismatches; "
        f"T_eq median {median},\n99 % {most}, maximum {largest}; on {certificate['settings']['device']}"
    )


def batch_size(one: Measurement | None) -> str:
    """As an option: how far texts are padded depends on it, and so do last bits."""
    found = re.search(r" --batch-size \d+", (one and one.command) or "")
    return found[0] if found else ""


def card(folder: Path, data_name: str, origin: str) -> str:
    results, certificate = (json.loads((folder / name).read_text(encoding="utf-8")) for name in FIGURES[:2])
    metrics, quantization = results["metrics"], certificate["settings"]["quantization"]
    embedding = quantization.get("embedding_bits")
    one = measurement(folder.name, metrics["qann"]["samples"])
    return CARD.format(
        name=results["recipe"],
        note=results.get("note") or f"Trained on {results['data']['name']}",
        levels=quantization["levels"],
        bits=quantization["weight_bits"],
        embedding=f", embedding tables on {embedding} bits" if embedding else "",
        parameters=metrics["qann"]["parameters"],
        size=sum(file.stat().st_size for file in folder.glob("model*.safetensors")) / 1e6,
        rows=rows(as_measured(metrics, one) if one else metrics),
        samples=metrics["qann"]["samples"],
        data_note=results["data"]["note"],
        seed=results["seed"],
        origin=origin,
        measured=measured(one, metrics, certificate["settings"]["device"]) if one else "",
        compared=compared(certificate),
        batch_size=batch_size(one),
        folder=folder,
        data_name=data_name,
        needed=needed(folder, origin),
    )


def needed(folder: Path, origin: str) -> str:
    """The networks that a training starts from and learns from, as `--set` names them."""
    stages = yaml.safe_load((folder / "recipe.yaml").read_text(encoding="utf-8"))["stages"]
    taught = [name for name, stage in stages.items() if ((stage or {}).get("distill") or {}).get("teacher") == "FOLDER"]
    names = [*([] if origin == "random weights" else ["model"]), *(f"{name}.distill.teacher" for name in taught)]
    return "".join(f"{name}=FOLDER " for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--results", type=Path, required=True, help="the run in the folder of results")
    parser.add_argument("--data-name", required=True, help="the dataset's name in spikezip.data")
    parser.add_argument(
        "--from", dest="origin", default="random weights", help="the pretrained network, and its licence"
    )
    args = parser.parse_args()
    missing = [path for path in (args.run / "qann", *(args.results / name for name in FIGURES)) if not path.exists()]
    if missing:
        raise SystemExit(
            f"{missing[0]} is not there: `spikezip results add RUN` takes over the figures of a finished run"
        )
    if args.folder.exists():
        shutil.rmtree(args.folder)
    shutil.copytree(args.run / "qann", args.folder, copy_function=shutil.copyfile)
    for name in FIGURES:
        shutil.copyfile(args.results / name, args.folder / name)
    (args.folder / "README.md").write_text(card(args.folder, args.data_name, args.origin), encoding="utf-8")
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{args.folder} takes {size:,} bytes; at most {LARGEST:,} are wanted")
    print(f"{args.folder}: {size:,} bytes")


if __name__ == "__main__":
    main()
