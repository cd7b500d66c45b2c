"""What the tables say, from runs whose figures the test chose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy_results as toy
from toy_results import home_of as home
from toy_results import rows

from spikezip.errors import ConfigError
from spikezip.measure.document import Model, OverTime
from spikezip.results import add_measurement, add_run
from spikezip.training.recipe import Recipe

AIM = [{"what": "QANN", "accuracy": 91.0, "source": "Paper, table 1"}]
AIM += [{"what": "SNN", "accuracy": 90.5, "steps": 32, "source": "Paper, table 1"}]
OWN = [{"what": "QANN", "accuracy": 99.0, "source": "measured, somewhere"}]


def test_a_row_of_the_language_table(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language }}", (toy.recipe(), {}), recipes=(toy.recipe(),))
    (row,) = rows(toy.built(folder))
    assert row == {
        "recipe": "[sst2-toy](../recipes/sst2-toy.yaml)",
        "size": "22.7 M",
        "levels": "16",
        "GELU": "95.00",
        "ReLU": "93.00",
        "calibrated": "70.00",
        "QANN": "90.00",
        "T = 32": "90.00",  # it had settled by then
        "T = 64": "90.00",
        "settled": "90.00",
        "T_eq": "2 / 3",
        "agrees": "100.00",
    }


def test_seeds_become_mean_and_spread(tmp_path: Path) -> None:
    runs = [(toy.recipe(seed=seed), {"qann": qann}) for seed, qann in ((2, 0.92), (0, 0.90), (1, 0.91))]
    text = toy.built(home(tmp_path, "{{ table language }}", *runs, recipes=(toy.recipe(),)))
    (row,) = rows(text)
    assert row["QANN"] == "91.00 ± 1.00 (3)"
    assert row["GELU"] == "95.00 ± 0.00 (3)"
    assert "Mean ± standard deviation (number of seeds)." in text


def test_the_same_seed_twice_is_refused(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language }}", (toy.recipe(), {}), (toy.recipe(), {}))
    with pytest.raises(ConfigError, match=r"0-sst2-toy and .*1-sst2-toy are runs of one recipe with the same settings"):
        toy.built(folder)


def test_other_settings_are_another_row_that_says_so(tmp_path: Path) -> None:
    runs = [(toy.recipe(), {}), (toy.recipe(epochs=3, seed=1), {"qann": 0.95})]
    found = rows(toy.built(home(tmp_path, "{{ table language }}", *runs, recipes=(toy.recipe(),))))
    assert [row["QANN"] for row in found] == ["90.00", "95.00"]
    assert found[0]["recipe"] == "[sst2-toy](../recipes/sst2-toy.yaml)"
    assert found[1]["recipe"].endswith("`finetune.epochs=3`, `relu.epochs=3`, `qat.epochs=3`")


def test_a_stage_that_was_left_out_is_named_once(tmp_path: Path) -> None:
    recipe = toy.recipe()
    without = replace(recipe, stages=replace(recipe.stages, finetune=None))
    folder = home(tmp_path, "{{ table language }}", (without, {}), recipes=(recipe,))
    assert rows(toy.built(folder))[0]["recipe"] == "[sst2-toy](../recipes/sst2-toy.yaml), `finetune=null`"
    other = home(tmp_path / "b", "{{ table language }}", (replace(recipe, name="x"), {}), recipes=())
    assert rows(toy.built(other))[0]["recipe"] == "[x](../results/runs/0-x/recipe.yaml)"


def test_recipes_without_a_run(tmp_path: Path) -> None:
    waiting = toy.recipe("mr-toy", "mr", expected=AIM), toy.recipe("mr-own", "mr", expected=OWN)
    folder = home(tmp_path, "{{ table language }}", (toy.recipe(), {}), recipes=(toy.recipe(), *waiting))
    text = toy.built(folder)
    (line,) = (line for line in text.splitlines() if line.startswith("| MR |"))
    own, aim = "[mr-own](../recipes/mr-own.yaml)", "[mr-toy](../recipes/mr-toy.yaml) (91.00 / 90.50 at 32)"
    assert line == f"| MR | {own}, {aim} |"
    assert "| SST-2 |" not in text
    assert "mr-toy" not in toy.built(toy.home(folder, "{{ table vision }}"))


def test_an_aim_that_is_missed_needs_a_reason(tmp_path: Path) -> None:
    recipe = toy.recipe(expected=AIM)
    folder = home(tmp_path, "{{ table language }}", (recipe, {}), recipes=(recipe,))
    problem = r"line 1: sst2-toy misses its aim \(QANN 90.00 against 91.00, SNN at T = 32 90.00 against 90.50\)"
    with pytest.raises(ConfigError, match=problem):
        toy.built(folder)
    reasons = folder / "results" / "reasons.yaml"
    reasons.write_text("sst2-toy: It is a toy.\n", encoding="utf-8")
    text = toy.built(folder)
    assert rows(text)[0]["aim: QANN / SNN at T"] == "91.00 / 90.50 at 32"
    assert "**Missed**: [sst2-toy](../recipes/sst2-toy.yaml): QANN 90.00 against 91.00, SNN at T = 32" in text
    assert text.rstrip().endswith("(Paper, table 1). It is a toy.")
    reasons.write_text("sst2-toy: It is a toy.\nmr-toy: Never run.\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="says why mr-toy misses its aim, but no run of it does"):
        toy.built(folder)


def test_an_aim_that_is_reached_needs_none(tmp_path: Path) -> None:
    recipe = toy.recipe(expected=[*AIM, *OWN])
    better = {"qann": 0.91, "curve": (0.5, 0.91)}
    text = toy.built(home(tmp_path, "{{ table language }}", (recipe, better), recipes=(recipe,)))
    assert "Missed" not in text


def test_a_choice_on_the_test_data_is_marked(tmp_path: Path) -> None:
    chosen = {"stages": {"qat": {"chosen_on_test": True}}}
    text = toy.built(home(tmp_path, "{{ table language }}", (toy.recipe(), chosen)))
    assert rows(text)[0]["QANN"] == "90.00†"
    assert "† Some stage kept the network that was best on the very data" in text


def test_a_network_with_relu_from_the_start_has_no_gelu(tmp_path: Path) -> None:
    recipe = toy.recipe("vit", "cifar10", model={"type": "vit", "config": {"hidden_act": "relu"}})
    (row,) = rows(toy.built(home(tmp_path, "{{ table vision }}", (recipe, {}))))
    assert "GELU" not in row
    assert (row["ReLU"], row["T = 16"]) == ("93.00", "90.00")


def test_past_the_end_of_a_run_that_had_not_settled_nothing_is_said(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language }}", (toy.recipe(), {}))
    file = folder / "results" / "runs" / "0-sst2-toy" / "certificate.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8")) | {"unsettled": 1, "exact": False}), "utf-8")
    row = rows(toy.built(folder))[0]
    assert row["settled"] == "90.00"
    assert not row.keys() & {"T = 32", "T = 64", "agrees"}


def test_data_that_no_table_shows_is_refused(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language }}", (toy.recipe("x", "tonic"), {}))
    with pytest.raises(ConfigError, match=r"0-x: no table shows the data 'tonic'; those of mr, sst2"):
        toy.built(folder)


def test_figures_of_others_stand_beside_ours_with_their_digits(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language-beside }}", (toy.recipe(), {}), (toy.recipe("mr-toy", "mr"), {}))
    quoted = folder / "results" / "quoted.yaml"
    quoted.write_text(toy.QUOTED, encoding="utf-8")
    text = toy.built(folder)
    other, ours = rows(text)
    assert (other["method"], other["parameters"], other["SST-2"]) == ("*Other*", "109 M", "85.30 (4)")
    assert other["source"] == "[A paper](https://example.org/paper), table 1"
    assert (ours["method"], ours["SST-2"], ours["MR"]) == ("Toy, 16 levels", "90.00 (3)", "90.00 (3)")
    assert ours["source"] == "measured here"
    assert "*Italic*: quoted" in text
    for old, new, problem in (
        ('"85.30"', "85.30", r'language.rows.other: 85.3: a figure in quotes is needed, such as "88.70"'),
        ("sst2:", "sst:", "language: there is no data 'sst'"),
        ("steps: 4,", "", "language.rows.other has no key 'steps'"),
        ("source: paper", "source: papyrus", "has no key 'sources.papyrus': did you mean 'paper'"),
    ):
        quoted.write_text(toy.QUOTED.replace(old, new), encoding="utf-8")
        with pytest.raises(ConfigError, match=problem):
            toy.built(folder)


def test_a_clause_in_a_name_leaves_no_comma(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table language-beside }}", (toy.recipe(note="Toy, trained long, on SST-2"), {}))
    (folder / "results" / "quoted.yaml").write_text(toy.QUOTED, encoding="utf-8")
    assert [row["method"] for row in rows(toy.built(folder))] == ["*Other*", "Toy, trained long, 16 levels"]


def test_floats_have_a_table_of_their_own(tmp_path: Path) -> None:
    page = "{{ table floats }}\n\n{{ table certificates }}\n\n{{ table power }}"
    folder = home(tmp_path, page, (toy.recipe(), {"wrong": 617}))
    own = json.loads((folder / "results" / "runs" / "0-sst2-toy" / "certificate.json").read_text("utf-8"))
    over_time = OverTime((1, 2), (0.3, 0.8), None, (0.4, 0.97), "qann", (0.5, 1.5), (0.5, 1.0))
    floats: dict[str, Any] = {"model": Model("ViT", 10, 16, None, 2, 4.0), "over_time": over_time}
    path = toy.measurement("vit32", certificate=own, **floats).save(tmp_path / "m.json")
    add_measurement(path, folder / "results")
    text = toy.built(folder)
    (row,) = rows(text)
    assert row == {
        "network": "[vit32](../results/measured/vit32.json)",
        **{"data": "CIFAR-10", "samples": "100", "codes compared": "12,345", "codes that differ": "617"},
        **{"in %": "5.00", "answers that differ": "3", "T_eq": "2 / 3 / 3"},
    }
    assert text.count("vit32]") == 1  # it is no certificate, and its energies are not those of the network
    add_measurement(toy.measurement("bare", **floats).save(tmp_path / "n.json"), folder / "results")
    with pytest.raises(ConfigError, match=r"bare\.json has float weights and was not compared"):
        toy.built(folder)


def test_all_certificates(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table certificates }}", (toy.recipe(), {}), (toy.recipe(seed=1), {"wrong": 7}))
    own = json.loads((folder / "results" / "runs" / "0-sst2-toy" / "certificate.json").read_text("utf-8"))
    add_measurement(toy.measurement("vit", 0.5, certificate=own).save(tmp_path / "m.json"), folder / "results")
    add_measurement(toy.measurement("without").save(tmp_path / "n.json"), folder / "results")
    text = toy.built(folder)
    good, bad, measured, together = rows(text)
    assert (good["data"], good["codes compared"], good["mismatches"], good["samples"]) == (
        "SST-2",
        "12,345",
        "0",
        "100",
    )
    assert (good["T_eq"], good["sites"], good["device"]) == ("2 / 3 / 3", "5", "Toy GPU, toy neuron")
    assert bad["mismatches"] == "7"
    assert measured["network"] == "[vit](../results/measured/vit.json), measured, stagger 0.5"
    assert measured["data"] == "CIFAR-10"
    assert (together["codes compared"], together["mismatches"]) == ("**37,035**", "**7**")
    assert "**Not exact**: [1-sst2-toy]" in text
    assert "All are exact" not in text


def test_power(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table power }}")
    add_measurement(toy.measurement("vit", 0.5).save(tmp_path / "m.json"), folder / "results")
    (row,) = rows(toy.built(folder))
    assert row == {
        "network": "[vit](../results/measured/vit.json)",
        "stagger": "0.5",
        "accuracy, %": "80.00",
        "spikes": "1.50",
        "T_eq": "2",
        "power: SNN": "12.3 mW",
        "power: QANN": "4.60 W",  # a billion multiply–accumulates of 4.6 pJ in a millisecond
        "SNN": "4.00 mJ",
        "SNN, integers": "500 µJ",
        "QANN, integers": "60.0 µJ",
        "float": "7.00 mJ",
    }


def test_quoted_power_and_training(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table power-quoted }}\n\n{{ table training-quoted }}")
    (folder / "results" / "quoted.yaml").write_text(
        toy.QUOTED
        + """
power:
  source: paper
  rows: {a: {method: A, parameters: null, where: table 2, data: sst2, steps: 64, power_w: "1.50", accuracy: "80.0"}}
training:
  source: paper
  rows:
    a: {method: A, parameters: "9", where: table 3, data: mr, gpus: 1 GPU, hours: "2.0", kwh: "1.10", accuracy: "80"}
""",
        encoding="utf-8",
    )
    text = toy.built(folder)
    (power,) = rows(text)
    assert (power["parameters"], power["power"], power["energy per inference"]) == ("–", "1.50 W", "96.0 mJ")
    assert "| *A* | 9\u00a0M | MR | 1 GPU | 2.0\u00a0h | 1.10\u00a0kWh | 80 | [A paper]" in text


def test_cost_of_training(tmp_path: Path) -> None:
    read = {"power_source": "nvml energy"}
    joules = {
        "finetune": {"joules": 36_000.0, **read},
        "relu": {"joules": 36_000.0, **read},
        "qat": {"joules": 72_000.0, **read},
        "snn": {"joules": 36_000.0, "seconds": 50.0, **read},
    }
    half = {"qat": {"joules": 72_000.0, **read}, "relu": {"cost_note": "the power of 30 of these 40 s was not read"}}
    runs = (toy.recipe(), {"stages": joules}), (toy.recipe("mr-toy", "mr"), {"stages": half})
    text = toy.built(home(tmp_path, "{{ table training }}", *runs))
    other, row = rows(text)
    assert (row["data"], row["device"]) == ("SST-2", "Toy GPU")
    assert [row[key] for key in ("float", "ReLU", "quantized", "certificate")] == ["100 s", "200 s", "300 s", "50 s"]
    assert (row["together"], row["energy"]) == ("11 min", "50.0 Wh (nvml energy)")
    assert (other["certificate"], other["together"], other["energy"]) == ("–", "10 min", "–")
    assert "mr-toy: the power of 30 of these 40 s was not read." in text


def test_a_run_once_more_has_a_cost_and_a_certificate_and_no_result(tmp_path: Path) -> None:
    tables = "{{ table training }}\n\n{{ table certificates }}\n\n{{ table language }}"
    folder = home(tmp_path, tables, (toy.recipe(), {}), (toy.recipe(seed=1), {"qann": 0.92}), recipes=(toy.recipe(),))
    joules = {name: {"joules": 36_000.0, "seconds": 10.0} for name in ("finetune", "relu", "qat", "snn")}
    repeated = toy.run(tmp_path / "more", toy.recipe(seed=1), qann=0.86, stages=joules)
    add_run(repeated, folder / "results", "repeated", kind="again")
    costs, certificates, results = (rows(text) for text in toy.built(folder).split("\n\n") if text.startswith("| "))
    assert [row["recipe"] for row in costs] == [
        "[sst2-toy](../recipes/sst2-toy.yaml)",
        "[sst2-toy](../recipes/sst2-toy.yaml), once more",
    ]
    assert [row["QANN, %"] for row in costs] == ["91.00 ± 1.41 (2)", "86.00"]
    assert [row["energy"] for row in costs] == ["–", "40.0 Wh"]
    assert [row["network"] for row in certificates][2:] == [
        "[repeated](../results/again/repeated/certificate.json), once more",
        "**together**",
    ]
    assert certificates[-1]["codes compared"] == "**37,035**"
    assert [row["QANN"] for row in results] == ["91.00 ± 1.41 (2)"]


@pytest.mark.parametrize("other", [toy.recipe(seed=1), toy.recipe("sst2-other"), toy.recipe(levels=8)])
def test_once_more_needs_a_first_time(tmp_path: Path, other: Recipe) -> None:
    folder = home(tmp_path, "{{ table training }}", (toy.recipe(), {}))
    add_run(toy.run(tmp_path / "more", other), folder / "results", "repeated", kind="again")
    with pytest.raises(
        ConfigError, match=rf"repeated repeats no run: runs/ holds none of {other.name} with its settin"
    ):
        toy.built(folder)


def test_measurements_over_time(tmp_path: Path) -> None:
    folder = home(tmp_path, "{{ table over-time vit at=1,9 }}")
    add_measurement(toy.measurement("vit").save(tmp_path / "m.json"), folder / "results")
    first, ninth, qann = rows(toy.built(folder))
    assert first == {"T": "1", "accuracy, %": "30.00", "agrees with the QANN, %": "40.00", "spikes per neuron": "0.50"}
    assert (ninth["T"], ninth["accuracy, %"], ninth["spikes per neuron"]) == ("9", "80.00", "1.50")
    assert qann == {"T": "QANN", "accuracy, %": "80.00", "agrees with the QANN, %": "", "spikes per neuron": ""}

    latency = {row[""]: row["vit"] for row in rows(toy.built(toy.home(folder, "{{ table latency vit }}")))}
    assert latency["T to the QANN's accuracy − 1.0 / − 0.1 / − 0 points"] == "2 / 2 / –"
    assert latency["fewest that lead to the same codes"] == "0.50"  # two spikes for four neurons

    (site,) = rows(toy.built(toy.home(folder, "{{ table activity vit }}")))
    assert site == {
        "sites of one kind": "`layers.*.q`",
        "neurons": "4",
        "spikes per neuron": "1.50",
        "up": "1.00",
        "down": "0.50",
        "net": "0.50",
        "silent, %": "50.00",
        "largest T_eq": "2",
    }
