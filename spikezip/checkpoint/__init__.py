"""Networks on disk: safetensors and JSON with a format version; no pickle anywhere. `write` saves, `read` loads."""
