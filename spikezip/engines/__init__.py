"""Interpreters of a program: quantized, and spiking over time."""
