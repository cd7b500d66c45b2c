"""The curves of the pictures."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
import toy_results as toy

from spikezip.results import Page, add_measurement, make
from spikezip.training.recipe import Recipe


def page(folder: Path, directive: str) -> Page:
    toy.home(folder, f"before\n![it]({{{{ {directive} }}}})\nafter")
    return make(folder / "results", folder / "docs" / "results.md", folder / "recipes")


def repository(folder: Path, *recipes: Recipe, sizes: dict[str, int] | None = None) -> Path:
    """Every second run ends after its first step."""
    runs = []
    for number, recipe in enumerate(recipes):
        size = (sizes or {}).get(recipe.name, 22_700_000)
        curve = (0.5, 0.8) if number % 2 else (0.5,)
        runs.append((toy.run(folder / f"run{number}", recipe, curve=curve, parameters=size), f"{recipe.name}-{number}"))
    return toy.home(folder, "", *runs)


def curves(found: Page) -> dict[str, tuple[float, ...]]:
    (chart,) = found.pictures.values()
    return {series.name: series.y for series in chart.series}


def test_seeds_are_one_curve_their_mean(tmp_path: Path) -> None:
    folder = repository(tmp_path, toy.recipe(), toy.recipe(seed=1))
    found = page(folder, "figure all runs/*")
    assert curves(found) == {"SST-2": (0.5, pytest.approx(0.65))}  # the first ended at 0.5 and stays there
    assert found.text.endswith("before\n![it](img/results/all.svg)\nafter\n")


@pytest.mark.parametrize(
    ("others", "labels"),
    [
        ((toy.recipe(), toy.recipe("mr-toy", "mr")), {"SST-2", "MR"}),
        ((toy.recipe(), toy.recipe("big", note="Big on SST-2")), {"Toy (22.7 M)", "Big (355 M)"}),
        ((toy.recipe(), toy.recipe(levels=32)), {"16 levels", "32 levels"}),
        ((toy.recipe("mr-toy", "mr"), toy.recipe(levels=32)), {"MR, 16 levels", "SST-2, 32 levels"}),
        ((toy.recipe(), toy.recipe(seed=1, epochs=2)), {"SST-2, sst2-toy-0", "SST-2, sst2-toy-1"}),
    ],
)
def test_labels_say_what_differs(tmp_path: Path, others: tuple[Recipe, ...], labels: set[str]) -> None:
    folder = repository(tmp_path, *others, sizes={"big": 355_000_000})
    assert set(curves(page(folder, "figure all runs/*"))) == labels


def test_measurements_can_be_drawn_too(tmp_path: Path) -> None:
    folder = repository(tmp_path, toy.recipe())
    add_measurement(toy.measurement("vit").save(tmp_path / "m.json"), folder / "results")
    assert curves(page(folder, "figure all measured/vit runs/*"))["vit"] == (0.3, 0.8)
    assert set(curves(page(folder, "figure all measured/*"))) == {"vit"}


def test_a_panel_waits_for_two_curves(tmp_path: Path) -> None:
    folder = repository(tmp_path, toy.recipe(), toy.recipe("mr-toy", "mr"))
    assert page(folder, "panel levels runs/sst2-*").text.endswith("before\nafter\n")
    assert not page(folder, "panel levels runs/sst2-*").pictures
    assert len(curves(page(folder, "panel data runs/*"))) == 2


def test_the_picture_is_an_svg_with_the_names_of_its_curves(tmp_path: Path) -> None:
    folder = repository(tmp_path, toy.recipe(), toy.recipe("mr-toy", "mr"))
    found = page(folder, "figure all runs/*")
    found.write()
    (path,) = found.pictures
    root = ElementTree.parse(path).getroot()
    texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"MR", "SST-2", "step T", "accuracy of the SNN"} <= texts


def test_levels_stand_in_their_order(tmp_path: Path) -> None:
    folder = repository(tmp_path, *(toy.recipe(f"sst2-{n}levels", levels=n) for n in (16, 32, 8)))
    assert list(curves(page(folder, "figure all runs/*"))) == ["8 levels", "16 levels", "32 levels"]


@pytest.mark.parametrize(("words", "rows"), [("Toy", 1), ("A network of whom there is much to be told", 2)])
def test_long_names_stand_below_each_other(tmp_path: Path, words: str, rows: int) -> None:
    other = toy.recipe("other", note=f"{words}, another on SST-2")
    folder = repository(tmp_path, toy.recipe(note=f"{words} on SST-2"), other, sizes={"other": 9_000_000})
    found = page(folder, "figure all runs/*")
    found.write()
    (path,) = found.pictures
    nodes = ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")
    places = {node.get("y") for node in nodes if words in "".join(node.itertext())}
    assert len(places) == rows, "how many rows the legend has"
