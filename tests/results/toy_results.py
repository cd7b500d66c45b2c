"""Folders as `spikezip train` leaves them, with figures that a test chooses, and a folder of results around them."""

import json
from pathlib import Path
from typing import Any

import torch

from spikezip.measure.certificate import Certificate, summarize_t_eq
from spikezip.measure.document import Answers, Data, Latency, Measurement, Model, OverTime, Settings, Site, Steps
from spikezip.show.attention_document import AttentionDocument, AttentionSample, Picture
from spikezip.training.recipe import Recipe

QUOTED = """
sources: {paper: {name: A paper, url: "https://example.org/paper"}}
language:
  source: paper
  rows:
    other: {method: Other, parameters: "109", where: table 1, steps: 4, accuracy: {sst2: "85.30", mr: "80.00"}}
"""


def recipe(name: str = "sst2-toy", data: str = "sst2", note: str = "Toy on SST-2, 16 levels", **more: Any) -> Recipe:
    """A recipe with all stages; `levels`, `seed`, `epochs`, `teacher` and any part of a recipe can be others."""
    taught = {"distill": {"teacher": more.pop("teacher")}} if "teacher" in more else {}
    train = {"epochs": more.pop("epochs", 1), "batch_size": 2, "learning_rate": 1e-3}
    stages = {
        "finetune": train,
        "relu": train,
        "quantize": {"levels": more.pop("levels", 16)},
        "qat": train | taught,
        "convert": True,
        "verify": {"steps": [32]},
    }
    given = {"name": name, "note": note, "data": {"name": data, "source": "/home/me/data"}, "stages": stages, **more}
    return Recipe.from_json(given)


def run(
    folder: Path,
    of: Recipe | None = None,
    *,
    qann: float = 0.9,
    curve: tuple[float, ...] = (0.5, 0.8, 0.9),
    parameters: int = 22_700_000,
    wrong: int = 0,
    stages: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """A finished run of 100 samples. `stages`: more metrics, by stage."""
    of = recipe() if of is None else of
    t_eq = summarize_t_eq([2] * 60 + [3] * 40)
    levels = of.stages.quantize.levels if of.stages.quantize else 0
    settings = {
        "device": "cuda (Toy GPU)",
        "backend": "torch eager, toy neuron",
        "model_class": "Toy",
        "quantization": {"levels": levels, "weight_bits": 8},
    }
    certificate = Certificate(not wrong, 5, 12_345, 100, wrong, 0, 0, None, t_eq, settings)
    metrics: dict[str, Any] = {
        "finetune": {"accuracy": 0.95, "seconds": 100.0},
        "relu": {"accuracy": 0.93, "seconds": 200.0},
        "quantize": {"accuracy": 0.7},
        "qat": {"accuracy": qann, "seconds": 300.0},
        "qann": {"accuracy": qann, "samples": 100, "parameters": parameters},
        "snn": {
            "exact": not wrong,
            "samples": 100,
            "accuracy": curve[-1],
            "t_eq": t_eq,
            "over_time": [
                {"step": t, "accuracy": a, "agreement": min(1.0, a + 0.1)} for t, a in enumerate(curve, start=1)
            ],
        },
    }
    for name, figures in (stages or {}).items():
        metrics[name] |= figures
    results = {
        "recipe": of.name,
        "note": of.note,
        "seed": of.seed,
        "data": {"name": of.data.name, "note": "read from /home/me/data/sst2.tsv, 1/2 of it"},
        "metrics": metrics,
        "versions": {"torch": "2", "device": "Toy GPU"},
    }
    (folder / "snn").mkdir(parents=True)
    (folder / "recipe.yaml").write_text(of.to_yaml(), encoding="utf-8")
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "versions.json").write_text(json.dumps(results["versions"]), encoding="utf-8")
    certificate.save(folder / "snn")
    return folder


def measurement(name: str = "toy", stagger: float = 0.0, **more: Any) -> Measurement:
    """Two steps, two sites; energies in round numbers."""
    once = Steps(2, 2, 2, 2, {"2": 10})
    networks = {"snn": 4e-3, "snn_integer": 5e-4, "qann": 6e-5, "float_model": 7e-3}
    energy = {
        "paper": {"power_w": 0.0123},
        "per_inference": {"MACs without time": 1e9, "spikes": 6.0},
        "model": {"mac_pj": 4.6, "step_s": 0.001},
        **{network: {"total": joules} for network, joules in networks.items()},
    }
    given: dict[str, Any] = {
        "name": name,
        "model": Model("ViT", 10, 16, 8, 2, 4.0, source="/home/me/snn"),
        "data": Data("cifar10:/home/me/cifar10", 10, 10),
        "settings": Settings("equilibrium", stagger=stagger),
        "device": "cpu (toy)",
        "over_time": OverTime((1, 2), (0.3, 0.8), None, (0.4, 1.0), "qann", (0.5, 1.5), (0.5, 1.0)),
        "latency": Latency(2, {"1.0": 2, "0.1": 2, "0": None}, once, 0),
        "sites": (
            Site("layers.0.q", 2.0, 4.0, 3.0, 1.0, 2.0, 0.25, once, (0.5, 1.5)),
            Site("layers.1.q", 2.0, 2.0, 1.0, 1.0, 0.0, 0.75, once, (0.5, 0.5)),
        ),
        "qann": Answers(0.8, 1.0),
        "energy": energy,
        "command": "spikezip measure /home/me/snn --data cifar10:/home/me/cifar10",
    }
    return Measurement(**(given | more))


def attention(name: str = "toy", samples: int = 3, steps: int = 5, **more: Any) -> AttentionDocument:
    """Images of noise, 32 pixels a side, which nothing makes small, on a grid of 8 × 8 patches."""
    random = torch.Generator().manual_seed(0)

    def weights() -> tuple[float, ...]:
        return tuple(round(value, 4) for value in torch.rand(64, generator=random).tolist())

    def sample(index: int) -> AttentionSample:
        image = torch.randint(0, 256, (32, 32, 3), generator=random, dtype=torch.uint8)
        image[0, 0] = torch.tensor([253, 9, 9], dtype=torch.uint8)  # in base64 it begins as a path does: with /
        over_time = tuple(weights() for _ in range(steps))
        return AttentionSample(index, "cat", "dog", 20 + index, 0.25, over_time, weights(), Picture.of(image), (8, 8))

    given: dict[str, Any] = {
        "name": name,
        "class_": "ViT",
        "parameters": 10,
        "levels": 16,
        "data": "cifar10:/home/me/cifar10",
        "map": "layers.0.attention.p",
        "source": "the class token",
        "steps": tuple(range(1, steps + 1)),
        "settings": Settings("equilibrium"),
        "device": "cpu (toy)",
        "samples": tuple(sample(7 * number) for number in range(samples)),
        "command": "spikezip attention /home/me/snn --data cifar10:/home/me/cifar10",
    }
    return AttentionDocument(**(given | more))


def home(folder: Path, page: str, *runs: tuple[Path, str], recipes: tuple[Recipe, ...] = ()) -> Path:
    """A repository: `results/` with these runs (path and name) and this page, and `recipes/`."""
    from spikezip.results import add_run

    (folder / "results").mkdir(exist_ok=True)
    (folder / "recipes").mkdir(exist_ok=True)
    (folder / "results" / "page.md").write_text(page, encoding="utf-8")
    for path, name in runs:
        add_run(path, folder / "results", name)
    for one in recipes:
        (folder / "recipes" / f"{one.name}.yaml").write_text(one.to_yaml(), encoding="utf-8")
    return folder


def built(folder: Path) -> str:
    """The page of a repository, without its first line."""
    from spikezip.results import make

    return make(folder / "results", folder / "docs" / "results.md", folder / "recipes").text.partition("\n\n")[2]


def rows(text: str) -> list[dict[str, str]]:
    """The first table of a text, each row by the names of its columns."""
    lines = [line for line in text.split("\n\n")[0].splitlines() if line.startswith("|")]
    head, _, *body = ([cell.replace("\u00a0", " ").strip() for cell in line.strip("|").split("|")] for line in lines)
    return [dict(zip(head, cells, strict=True)) for cells in body]


def home_of(folder: Path, page: str, *runs: tuple[Recipe, dict[str, Any]], recipes: tuple[Recipe, ...] = ()) -> Path:
    """A repository with runs of these recipes; run number n is called `n-NAME`."""
    made = [(run(folder / f"run{n}", of, **more), f"{n}-{of.name}") for n, (of, more) in enumerate(runs)]
    return home(folder, page, *made, recipes=recipes)
