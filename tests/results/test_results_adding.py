"""Metrics on their way into the folder of results."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import toy_results as toy

from spikezip.errors import ConfigError, InputError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement
from spikezip.results import add_measurement, add_run, recipes
from spikezip.training.recipe import load_recipe


def test_a_run_is_copied_without_the_machine(tmp_path: Path) -> None:
    run = toy.run(tmp_path / "run", toy.recipe(output="/home/me/runs/x", model={"path": "/home/me/bert"}))
    added = add_run(run, tmp_path / "results")
    assert added == tmp_path / "results" / "runs" / "sst2-toy"
    assert sorted(file.name for file in added.iterdir()) == [
        "certificate.json",
        "recipe.yaml",
        "results.json",
        "versions.json",
    ]
    assert not any("/home" in file.read_text("utf-8") for file in added.iterdir())
    before, after = (json.loads((folder / "results.json").read_text("utf-8")) for folder in (run, added))
    assert after["metrics"] == before["metrics"]
    assert after["data"]["note"] == "read from sst2.tsv, 1/2 of it"
    recipe = load_recipe(added / "recipe.yaml")
    assert (recipe.model.path, recipe.data.source, recipe.output) == (None, None, None)
    assert recipe.stages == load_recipe(run / "recipe.yaml").stages
    assert (added / "certificate.json").read_text("utf-8") == (run / "snn" / "certificate.json").read_text("utf-8")


def test_names(tmp_path: Path) -> None:
    into = tmp_path / "results"
    assert add_run(toy.run(tmp_path / "a", toy.recipe(seed=3)), into).name == "sst2-toy-seed3"
    assert add_run(toy.run(tmp_path / "b"), into, "other").name == "other"
    assert add_run(tmp_path / "b", into, "other", kind="tried") == into / "tried" / "other"
    assert add_run(tmp_path / "b", into, kind="again") == into / "again" / "sst2-toy"
    with pytest.raises(ConfigError, match="other is there already: choose another --name, or replace it with --over"):
        add_run(tmp_path / "b", into, "other")
    assert add_run(tmp_path / "b", into, "other", over=True).name == "other"
    with pytest.raises(ConfigError, match=r"'\.\./x' cannot be the name of a file"):
        add_run(tmp_path / "b", into, "../x")


def test_a_name_on_the_hub_stays(tmp_path: Path) -> None:
    run = toy.run(tmp_path / "run", toy.recipe(model={"path": "FacebookAI/roberta-base"}))
    assert load_recipe(add_run(run, tmp_path / "results") / "recipe.yaml").model.path == "FacebookAI/roberta-base"


def teacher_in(file: Path) -> str:
    return str(load_recipe(file).to_json()["stages"]["qat"]["distill"]["teacher"])


def test_a_teacher_that_lies_here_is_named_anew(tmp_path: Path) -> None:
    there = toy.recipe(teacher="/home/me/regnet")
    added = add_run(toy.run(tmp_path / "run", there), tmp_path / "results") / "recipe.yaml"
    assert "/home" not in added.read_text("utf-8")
    assert teacher_in(added) == "FOLDER"
    assert recipes.changed(there, load_recipe(added)) == ()
    for kept in ("previous", "microsoft/resnet-50"):
        run = toy.run(tmp_path / kept.replace("/", "-"), toy.recipe(teacher=kept))
        assert teacher_in(add_run(run, tmp_path / "results", over=True) / "recipe.yaml") == kept
    assert recipes.changed(toy.recipe(teacher="previous"), there) == ("qat.distill.teacher=previous",)


def test_a_run_that_was_set_by_hand_goes_by_the_recipe_that_says_so(tmp_path: Path) -> None:
    run = toy.run(tmp_path / "run", toy.recipe(output="/home/me/runs/x"))
    file = tmp_path / "written.yaml"
    file.write_text(replace(toy.recipe(), name="written", note="by hand").to_yaml(), encoding="utf-8")
    added = add_run(run, tmp_path / "results", recipe=file)
    results = json.loads((added / "results.json").read_text("utf-8"))
    recipe = load_recipe(added / "recipe.yaml")
    assert (added.name, results["recipe"], results["note"]) == ("written", "written", "by hand")
    assert (recipe.name, recipe.note) == ("written", "by hand")
    other = tmp_path / "other.yaml"
    other.write_text(replace(toy.recipe(), precision="bf16").to_yaml(), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"the run is none of .*other.yaml: it had precision="):
        add_run(run, tmp_path / "results", "again", recipe=other)
    assert not (tmp_path / "results" / "runs" / "again").exists()


def test_a_certificate_at_the_top_of_the_folder_will_do(tmp_path: Path) -> None:
    run = toy.run(tmp_path / "run")
    (run / "snn" / "certificate.json").rename(run / "certificate.json")
    assert (add_run(run, tmp_path / "results") / "certificate.json").is_file()


def test_what_is_no_finished_run_is_refused(tmp_path: Path) -> None:
    into = tmp_path / "results"
    with pytest.raises(ConfigError, match=r"is not the folder of a run: it holds no recipe\.yaml"):
        add_run(tmp_path, into)
    unfinished = toy.run(tmp_path / "unfinished")
    (unfinished / "results.json").unlink()
    with pytest.raises(ConfigError, match=r"unfinished is not finished: it holds no results.json; .* --resume"):
        add_run(unfinished, into)
    part = toy.run(tmp_path / "part")
    (part / "versions.json").unlink()
    with pytest.raises(ConfigError, match=r"part holds no versions.json"):
        add_run(part, into)
    bare = toy.run(tmp_path / "bare")
    (bare / "snn" / "certificate.json").unlink()
    with pytest.raises(ConfigError, match="bare has no certificate: its recipe needs the stages quantize, convert and"):
        add_run(bare, into)
    torn = toy.run(tmp_path / "torn")
    (torn / "results.json").write_text('{"recipe": ', encoding="utf-8")
    with pytest.raises(InputError, match=r"torn/results.json is not JSON"):
        add_run(torn, into)
    assert not into.exists()


def test_a_certificate_of_something_else_is_refused(tmp_path: Path) -> None:
    run = toy.run(tmp_path / "run")
    file = run / "snn" / "certificate.json"
    other = json.loads(file.read_text("utf-8")) | {"samples": 7}
    file.write_text(json.dumps(other), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"is not the certificate of this run \(7 samples; the run had 100"):
        add_run(run, tmp_path / "results")
    assert Certificate.from_json(file.read_text("utf-8")).samples == 7


def test_a_measurement_is_copied_without_the_machine(tmp_path: Path) -> None:
    file = toy.measurement("snn").save(tmp_path / "m.json")
    added = add_measurement(file, tmp_path / "results", "vit")
    assert added == tmp_path / "results" / "measured" / "vit.json"
    found = Measurement.load(added)
    assert (found.name, found.model.source, found.data.name) == ("vit", "snn", "cifar10:cifar10")
    assert found.command == "spikezip measure snn --data cifar10:cifar10"
    assert (found.over_time, found.energy) == (toy.measurement().over_time, toy.measurement().energy)
    assert add_measurement(file, tmp_path / "results").name == "snn.json"
    with pytest.raises(ConfigError, match=r"vit.json is there already"):
        add_measurement(file, tmp_path / "results", "vit")
    with pytest.raises(InputError, match="this is no measurement"):
        add_measurement(toy.run(tmp_path / "run") / "results.json", tmp_path / "results")
