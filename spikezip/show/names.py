"""Names and numbers as people read them."""

import re

from spikezip.measure.document import Measurement

_REFERENCES = {"qann": "the QANN", "equilibrium": "equilibrium", "last step": "the last step"}
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def layer_name(site: str) -> str:
    """The block that a site belongs to.

    Example:
        >>> layer_name("encoder.layer.3.attention.self.q"), layer_name("layers.0.blocks.1.mlp.fc2")
        ('layer 3', 'layer 0.1')
        >>> layer_name("embeddings.LayerNorm"), layer_name("classifier.out_proj.in")
        ('embeddings', 'classifier')
    """
    numbers = _NUMBER.findall(site)
    return f"layer {'.'.join(numbers)}" if numbers else site.partition(".")[0]


def percent(share: float, digits: int = 2) -> str:
    """A share in 0 … 1.

    Example:
        >>> percent(0.9234)
        '92.34 %'
    """
    return f"{100 * share:.{digits}f} %"


def agreement_name(one: Measurement) -> str:
    """With what the agreement of a measurement is."""
    return f"agrees with {_REFERENCES.get(one.over_time.agreement_with or '', 'the last step')}"
