"""Runs whose network can be had as a checkpoint: their rows say what was measured from it, which anybody can repeat.

On the device that a network was trained on, the last bits of LayerNorm and softmax are others than on a reader's. Its
row can be had again to the last digit only if it was measured where the reader will measure.
"""

from collections.abc import Mapping
from typing import Any

from spikezip.errors import ConfigError
from spikezip.measure.certificate import Certificate
from spikezip.measure.document import Measurement

AT = (16, 32, 64)  # the steps that a run notes by themselves


def as_measured(metrics: Mapping[str, Any], one: Measurement) -> dict[str, Any]:
    """Metrics of a run, but those of QANN and SNN as they were measured.

    Args:
        metrics: those of `results.json`.
        one: a measurement of the run's checkpoint, on the same samples, with its QANN.

    Example:
        >>> from spikezip.measure.document import Answers, Data, Latency, Measurement, Model, OverTime, Settings, Steps
        >>> steps = Steps(1, 2, 2, 2)
        >>> one = Measurement(
        ...     name="tiny",
        ...     model=Model("ViTModel", 10, 16, 8, 1, 4.0),
        ...     data=Data(None, 4, 2),
        ...     settings=Settings("equilibrium"),
        ...     device="cpu",
        ...     over_time=OverTime((1, 2), (0.5, 0.75), None, (0.5, 1.0), "qann", (0.1, 0.3), (0.1, 0.2)),
        ...     latency=Latency(None, {}, steps, 0),
        ...     sites=(),
        ...     qann=Answers(0.75),
        ... )
        >>> there = {"relu": {"accuracy": 0.8}, "qann": {"accuracy": 0.5, "samples": 4}, "snn": {"accuracy": 0.5}}
        >>> here = as_measured(there, one)
        >>> here["relu"], here["qann"], here["snn"]["accuracy"], here["snn"]["accuracy_at"]
        ({'accuracy': 0.8}, {'accuracy': 0.75, 'samples': 4}, 0.75, {'16': 0.75, '32': 0.75, '64': 0.75})
    """
    right, same = one.over_time.accuracy, one.over_time.agreement
    if one.qann is None or one.qann.accuracy is None or right is None or same is None:
        raise ConfigError(f"measured/{one.name} has no accuracy of the QANN: measure it with --qann and labelled data")
    curves = zip(one.over_time.step, right, same, strict=True)
    over_time = [{"step": step, "accuracy": share, "agreement": agrees} for step, share, agrees in curves]
    t_eq = one.to_json()["latency"]["t_eq"]
    snn = {
        "accuracy": right[-1],
        "accuracy_at": {str(step): one.at("accuracy", step) for step in AT},
        "t_eq": t_eq,
        "spikes_per_neuron": one.spikes_per_neuron,
        "over_time": over_time,
    }
    return {
        **metrics,
        "qann": {**metrics["qann"], "accuracy": one.qann.accuracy},
        "snn": {**metrics["snn"], **snn},
    }


def certificate_of(one: Measurement, run: Certificate, name: str) -> Certificate:
    """The certificate of a measurement; an error if that was not of the run's network, on its samples, and exact.

    Args:
        one: the measurement.
        run: the certificate of the run.
        name: of the run.
    """
    if one.certificate is None:
        raise ConfigError(f"measured/{one.name} was not compared with the QANN: measure it with --qann")
    found = Certificate(**one.certificate)
    if found.samples != run.samples:
        raise ConfigError(
            f"measured/{one.name} has {found.samples:,} samples and runs/{name} {run.samples:,}: measure all of them"
        )
    ours, theirs = (_network(certificate) for certificate in (run, found))
    if ours != theirs:
        raise ConfigError(f"measured/{one.name} is not the network of runs/{name}: {theirs}, not {ours}")
    if not found.exact:
        raise ConfigError(f"measured/{one.name} is not exact, and so no figure of the QANN's: look into it first")
    if one.settings.stagger or one.over_time.agreement_with != "qann":
        raise ConfigError(f"measured/{one.name} is no plain run up to equilibrium beside the QANN: measure it so")
    return found


def _network(one: Certificate) -> str:
    levels, bits = (one.settings["quantization"][key] for key in ("levels", "weight_bits"))
    return f"{one.settings['model_class']} of {one.sites} sites, {levels} levels, weights of {bits} bits"
