"""The Hugging Face engine. Its modules import torch and transformers: import them only where the engine is used."""

from pipegen.backends.extras import need

for _package in ("torch", "transformers"):
    need(_package, "hf", "the Hugging Face engine")
