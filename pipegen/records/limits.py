"""Every limit on what one request may ask for, or may be. `RequestPolicy` raises those that depend on the machine or the caller; the others are fixed.

Without them one line of a file could take all the memory, or never end.
"""

from __future__ import annotations

__all__ = ["CHOICES", "IMAGES", "INTEGER", "MESSAGES", "NESTING", "OPTION_BYTES", "PARTS", "PROMPT_BYTES", "SAMPLES", "STOPS", "UNCOUNTED_BYTES", "VALUES"]

# Of any plain data: messages, tools, options. Fixed.
NESTING = 64
"""How deep lists and mappings may be nested."""
VALUES = 200_000
"""How many values such data may hold in all; a list that stands in several places counts each time."""
INTEGER = 2**31 - 1
"""The largest whole number of an option: what the engines' own 32 bits hold."""

# Raised by `RequestPolicy`.
SAMPLES = 1024
MESSAGES = 10_000
PARTS = 100_000
"""Parts of content, of all messages together."""
IMAGES = 1024
STOPS = 1024
"""Stop strings and stop token ids together."""
CHOICES = 10_000
"""Texts of the option `choice`."""
PROMPT_BYTES = 64 * 2**20
"""Text of the prompt, the messages and the tools in UTF-8; four bytes for each token id."""
OPTION_BYTES = 2**20
"""Text of the options in UTF-8: stops, template, schema, regex and choices together."""

# Of a prompt before it is tokenised.
UNCOUNTED_BYTES = 16 * 2**20
"""The longest prompt for an engine whose token limit is unknown; saying `max_prompt_tokens` takes longer ones."""
