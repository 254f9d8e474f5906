"""The Hugging Face engine. Its modules import torch and transformers: import them only where the
engine is used.
"""
