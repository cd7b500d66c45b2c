"""The equations of the method, as pure functions on tensors. Each stands once, in a `reference` module."""
