"""Put the network of a run into the zoo: packed, with its card, and with recipe, metrics and certificate of results/.

    spikezip results add runs/sst2-minilm
    python zoo/make.py runs/sst2-minilm zoo/sst2-minilm --results results/runs/sst2-minilm \\
        --data-name sst2 --from "all-MiniLM-L6-v2 (Apache-2.0)"

Every figure on the card comes from there, and from results/measured/NAME.json where the network was measured from its
folder in the zoo, on another device.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

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

{samples:,} test samples ({data_note}) Seed {seed}. Recipe: [`recipe.yaml`](recipe.yaml), all figures:
[`results.json`](results.json). Starting point: {origin}.

**Certificate** ([`certificate.json`](certificate.json)): {exact}, {certified:,} samples, {codes:,} codes compared at
{sites} sites, {mismatches} mismatches; T_eq median {median}, 99 % {p99}, maximum {maximum}. Made on {device}.
{elsewhere}
```python
import spikezip

qann = spikezip.load("{folder}")
snn = spikezip.convert(qann)
```

```bash
spikezip verify {folder} --data {data_name}:FOLDER   # makes the certificate again, on your machine
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


def elsewhere(name: str, samples: int) -> str:
    """What `spikezip measure` gave from this folder, if it was asked for all samples."""
    file = MEASURED / f"{name}.json"
    found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    if found is None or found["data"]["samples"] != samples:
        return ""
    certificate, qann, settled = found["certificate"], found["qann"]["accuracy"], found["over_time"]["accuracy"][-1]
    exact = "exact" if certificate["exact"] else "NOT exact"
    return f"""
**Measured from this folder** on {found["device"]}, all {samples:,} samples:
QANN {100 * qann:.2f} %, SNN at equilibrium {100 * settled:.2f} %; {exact}, {certificate["codes"]:,}
codes compared, {certificate["mismatches"]} mismatches. LayerNorm and softmax differ in their last bits from device to
device: a sample may be answered otherwise on another.
"""


def card(folder: Path, data_name: str, origin: str) -> str:
    results, certificate = (json.loads((folder / name).read_text(encoding="utf-8")) for name in FIGURES[:2])
    metrics, quantization = results["metrics"], certificate["settings"]["quantization"]
    embedding = quantization.get("embedding_bits")
    return CARD.format(
        name=results["recipe"],
        note=results.get("note") or f"Trained on {results['data']['name']}",
        levels=quantization["levels"],
        bits=quantization["weight_bits"],
        embedding=f", embedding tables on {embedding} bits" if embedding else "",
        parameters=metrics["qann"]["parameters"],
        size=sum(file.stat().st_size for file in folder.glob("model*.safetensors")) / 1e6,
        rows=rows(metrics),
        samples=metrics["qann"]["samples"],
        data_note=results["data"]["note"],
        seed=results["seed"],
        origin=origin,
        exact="exact" if certificate["exact"] else "NOT exact",
        certified=certificate["samples"],
        codes=certificate["codes"],
        sites=certificate["sites"],
        mismatches=certificate["mismatches"],
        median=certificate["t_eq"]["median"],
        p99=certificate["t_eq"]["p99"],
        maximum=certificate["t_eq"]["max"],
        device=certificate["settings"]["device"],
        elsewhere=elsewhere(folder.name, metrics["qann"]["samples"]),
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
