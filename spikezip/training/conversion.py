"""From a float network to a certified spiking one: `quantize`, the QANN as it is shipped, `convert` and `verify`."""

from collections.abc import Iterator

from torch import Tensor
from transformers import PreTrainedModel

from spikezip.engines import SpikingNetwork
from spikezip.measure.agreement import agreement
from spikezip.measure.certificate import Certificate
from spikezip.measure.exactness import verify
from spikezip.measure.over_time import OverTime
from spikezip.models.networks import convert, quantize
from spikezip.quant.calibration import calibrate
from spikezip.quant.network import QuantizedNetwork
from spikezip.quant.snap import snap
from spikezip.training.callbacks import write_line
from spikezip.training.cost import Meter
from spikezip.training.folder import METRICS
from spikezip.training.models import restore_attention_dropout
from spikezip.training.settings import VerifyStage
from spikezip.training.work import MODEL, Work


def quantize_stage(work: Work, model: PreTrainedModel) -> QuantizedNetwork:
    """Place the quantizers and calibrate them, or read what the stage left."""
    data, settings = work.inputs.data, work.recipe.stages.quantize
    assert settings is not None
    model = model.to(work.state.device)
    finished = work.folder.done("quantize")
    work.state.wait_for_everyone()  # all have asked before one of them can finish
    if finished is not None:
        work.metrics["quantize"] = finished
        loaded: QuantizedNetwork = work.load_stage("quantize", model)
        return loaded
    qann = quantize(model.eval(), settings.quant_config(), work.inputs.example(model.device))
    restore_attention_dropout(qann)
    count, seed = settings.batch_size * settings.batches, work.recipe.seed
    batches = work.inputs.batches(data.train, settings.batch_size, count, work.state.device, drawn_by=seed)
    calibrate(
        qann,
        ({k: v for k, v in batch.items() if k != "labels"} for batch in batches),
        settings.effort,
        seed=seed,
        progress=lambda done, total: work.tell("quantize", done, total),
    )
    metrics = {"accuracy": work.inputs.accuracy(qann, data.test), "sites": len(qann.sites)}
    work.save(qann, work.folder.stage("quantize") / MODEL)
    work.finish("quantize", metrics)
    return qann


def finish_qann(work: Work, qann: QuantizedNetwork) -> None:
    """Weights onto the grid for good, then the figures of that network, which is the one that is saved."""
    inputs, test = work.inputs, work.inputs.data.test
    qann.eval()
    bits = qann.quant_config.weight_bits
    moved = snap(qann) if bits == 8 else 0.0
    first = next(inputs.batches(test, 32, None, qann.device))
    first.pop("labels")
    work.metrics["qann"] = {
        "accuracy": inputs.accuracy(qann, test),
        "samples": len(test),
        "parameters": sum(p.numel() for p in qann.parameters()),
        "grid_agreement": agreement(qann, first).share,
        "moved_by_snapping": moved,
    }
    work.save(qann, work.folder.path / "qann", compact=bits == 8)


def convert_stage(work: Work, qann: QuantizedNetwork) -> tuple[SpikingNetwork, Certificate | None]:
    """The spiking network, written, and its certificate, if the recipe asks for one. The first process verifies."""
    snn = convert(qann)
    work.save(snn, work.folder.path / "snn")
    certificate = None
    if work.recipe.stages.verify is not None and work.state.is_main_process:
        certificate = _verify(work, qann, snn, work.recipe.stages.verify)
    work.state.wait_for_everyone()
    return snn, certificate


def _verify(work: Work, qann: QuantizedNetwork, snn: SpikingNetwork, settings: VerifyStage) -> Certificate:
    test = work.inputs.data.test
    total = min(len(test), settings.samples or len(test))
    over_time = OverTime()
    labels: list[Tensor] = []

    def stream() -> Iterator[dict[str, Tensor]]:
        for batch in work.inputs.batches(test, settings.batch_size, total, qann.device):
            labels.append(batch["labels"])
            yield batch

    with Meter(work.state.device) as meter:
        certificate = verify(
            qann,
            snn,
            stream(),
            engine=settings.engine,
            progress=lambda done: work.tell("verify", done, total),
            watch=lambda output, run: over_time.add(run, labels.pop(0)),
        )
    for name in ("snn", "qann"):
        certificate.save(work.folder.path / name)
    numbers = over_time.numbers()
    steps = numbers["over_time"]
    work.metrics["snn"] = {
        "exact": certificate.exact,
        "samples": total,
        "accuracy": steps[-1]["accuracy"],
        "accuracy_at": {str(t): steps[min(t, len(steps)) - 1]["accuracy"] for t in settings.steps},
        "t_eq": numbers["t_eq"],
        "spikes_per_neuron": numbers["spikes_per_neuron"],
        **meter.own().to_json(),  # the others wait meanwhile
        "over_time": [{k: s[k] for k in ("step", "accuracy", "agreement")} for s in steps],
    }
    write_line(
        work.folder.path / METRICS,
        {"stage": "verify", **{k: v for k, v in work.metrics["snn"].items() if k != "over_time"}},
    )
    return certificate
