"""Checkpoints: what is known of a model without its weights, its tokenizer and its processor."""
