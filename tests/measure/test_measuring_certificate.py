"""With a QANN, `measure` says of the codes what `verify` says of them."""

import json
from typing import Any

import measured
import pytest

import spikezip
from spikezip.engines import quantized
from spikezip.measure import one_batch
from spikezip.measure.certificate import Certificate, summarize_t_eq
from spikezip.measure.document import Measurement
from spikezip.measure.measuring import measure


def _plain(certificate: Certificate) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(certificate.to_json())
    return plain


@pytest.mark.parametrize("options", [{}, {"engine": "spike", "coding": "rate", "max_spike": 2, "stagger": 0.5}])
@pytest.mark.parametrize("exact", [True, False])
def test_it_is_that_of_verify(options: dict[str, Any], exact: bool) -> None:
    _, qann, snn = measured.networks()
    reference = qann if exact else measured.altered()
    data = measured.batches_with_differences()
    found = measure(snn, data, reference, **options)
    expected = spikezip.verify(reference, snn, data, **options)
    assert found.certificate == _plain(expected)
    assert expected.exact == exact
    assert Measurement.from_json(json.loads(json.dumps(found.to_json()))) == found
    if not exact:
        assert found.certificate["mismatches"] > 0
        assert found.certificate["first_mismatch"]["batch"] == 1


def test_every_difference_is_counted() -> None:
    """Against a comparison of all codes one by one."""
    snn, other, data = measured.networks()[2], measured.altered(), measured.batches_with_differences()
    found = measure(snn, data, other).certificate
    assert found is not None
    codes = differences = outputs = 0
    t_eq: list[int] = []
    for batch in data:
        run = spikezip.simulate(snn, batch, "equilibrium")
        found_output, expected = quantized(other.frozen(), other.prepare(batch))
        output = found_output["logits"]
        for site, right in expected.items():
            pairs = list(zip(right.flatten().tolist(), run.tracers[site].flatten().tolist(), strict=True))
            codes += len(pairs)
            differences += sum(a != b for a, b in pairs)
        outputs += int((output != run.logits).sum())
        t_eq += [t for t in run.t_eq if t is not None]
    assert (found["codes"], found["mismatches"], found["output_mismatches"]) == (codes, differences, outputs)
    assert found["t_eq"] == summarize_t_eq(t_eq)
    assert differences > 0
    assert outputs > 0


def test_one_simulation_and_one_pass_of_the_qann(monkeypatch: pytest.MonkeyPatch) -> None:
    _, qann, snn = measured.networks()
    calls = []

    def counted(name: str, real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            calls.append(name)
            return real(*args, **named)

        return call

    for name in ("simulate", "quantized"):
        monkeypatch.setattr(one_batch, name, counted(name, getattr(one_batch, name)))
    measure(snn, measured.batches(2, 1), qann)
    assert calls == ["simulate", "quantized"] * 2


def test_codes_are_compared_only_when_they_are_final() -> None:
    _, qann, snn = measured.networks()
    data = measured.batches(2, 3)
    settled = measure(snn, data, qann)
    assert settled.certificate is not None
    last = settled.latency.t_eq.max
    assert last is not None
    assert measure(snn, data, qann, steps=last + 1).certificate == settled.certificate  # one silent step: all settled
    assert measure(snn, data, qann, steps=3).certificate is None
    cut = measure(snn, data, qann, max_steps=3)  # to equilibrium, but not so far: counted as unsettled
    assert cut.certificate == _plain(spikezip.verify(qann, snn, data, max_steps=3))
    assert (cut.certificate["exact"], cut.certificate["unsettled"]) == (False, 5)


def test_a_certificate_from_elsewhere_is_for_a_document_without_a_qann() -> None:
    _, qann, snn = measured.networks()
    given = spikezip.verify(qann, snn, measured.batches(4))
    data = measured.batches(2)
    assert measure(snn, data, certificate=given).certificate == _plain(given)
    assert measure(snn, data).certificate is None
    own = measure(snn, data, qann, certificate=given).certificate
    assert own is not None
    assert own["samples"] == 2
    assert measure(snn, data, qann, steps=3, certificate=given).certificate is None
