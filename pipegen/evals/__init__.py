"""Evaluation harnesses on any engine of pipegen: lm-eval and inspect."""
