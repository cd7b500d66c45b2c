"""Put the result of a run into the zoo: the quantized network, packed, with its card, recipe, metrics and certificate.

    python zoo/make.py runs/sst2-minilm zoo/sst2-minilm --data-name sst2 --from "all-MiniLM-L6-v2 (Apache-2.0)"

Every figure on the card comes from the run's results.json and from its certificate.
"""

import argparse
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from spikezip.training import Recipe, load_recipe

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

```python
import spikezip

qann = spikezip.load("{folder}")
snn = spikezip.convert(qann)
```

```bash
spikezip verify {folder} --data {data_name}:FOLDER   # makes the certificate again, on your machine
spikezip train {folder}/recipe.yaml --set {model}data=FOLDER output=runs/{name}   # trains it again
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


def card(run: Path, folder: Path, data_name: str, origin: str) -> str:
    results = json.loads((run / "results.json").read_text(encoding="utf-8"))
    certificate = json.loads((run / "snn" / "certificate.json").read_text(encoding="utf-8"))
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
        folder=folder,
        data_name=data_name,
        model="" if origin == "random weights" else "model=FOLDER ",
    )


def portable(path: Path) -> Recipe:
    """The recipe of a run without the folders of the machine that it ran on: `--set` gives them anew."""
    recipe = load_recipe(path)
    return replace(
        recipe,
        model=replace(recipe.model, path=None),
        data=replace(recipe.data, source=None),
        output=None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data-name", required=True, help="the dataset's name in spikezip.data")
    parser.add_argument(
        "--from", dest="origin", default="random weights", help="the pretrained network, and its licence"
    )
    args = parser.parse_args()
    if not (args.run / "snn" / "certificate.json").is_file():
        raise SystemExit(f"{args.run} holds no certificate: its recipe needs convert and verify")
    if args.folder.exists():
        shutil.rmtree(args.folder)
    shutil.copytree(args.run / "qann", args.folder, copy_function=shutil.copyfile)
    shutil.copyfile(args.run / "snn" / "certificate.json", args.folder / "certificate.json")
    shutil.copyfile(args.run / "results.json", args.folder / "results.json")
    (args.folder / "recipe.yaml").write_text(portable(args.run / "recipe.yaml").to_yaml(), encoding="utf-8")
    (args.folder / "README.md").write_text(card(args.run, args.folder, args.data_name, args.origin), encoding="utf-8")
    size = sum(file.stat().st_size for file in args.folder.iterdir())
    if size > LARGEST:
        raise SystemExit(f"{args.folder} takes {size:,} bytes; at most {LARGEST:,} are wanted")
    print(f"{args.folder}: {size:,} bytes")


if __name__ == "__main__":
    main()
