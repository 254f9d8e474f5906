"""Keys: read from the environment, shown nowhere.

>>> Secret("sk-123")
Secret(hidden)
>>> Secret("sk-123").reveal()
'sk-123'
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from pipegen.records.secret import Secret

__all__ = ["KEY_VARIABLES", "Secret", "expanded", "provider_variables"]

KEY_VARIABLES = frozenset({"VLLM_API_KEY", "SGLANG_API_KEY", "OPENAI_API_KEY"})
"""Variables that need not be set: local servers take any key, and are sent `EMPTY`."""
_PROVIDERS: Mapping[str, tuple[str, ...]] = {
    "aliyuncs.com": ("QWEN_API_KEY",),
    "anthropic.com": ("ANTHROPIC_API_KEY",),
    "bigmodel.cn": ("ZAI_API_KEY",),
    "cerebras.ai": ("CEREBRAS_API_KEY",),
    "cohere.ai": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere.com": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepinfra.com": ("DEEPINFRA_API_KEY", "DEEPINFRA_TOKEN"),
    "deepseek.com": ("DEEPSEEK_API_KEY",),
    "fireworks.ai": ("FIREWORKS_API_KEY",),
    "googleapis.com": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq.com": ("GROQ_API_KEY",),
    "huggingface.co": ("HF_TOKEN",),
    "mistral.ai": ("MISTRAL_API_KEY",),
    "moonshot.ai": ("MOONSHOT_API_KEY", "KIMI_API_KEY"),
    "moonshot.cn": ("MOONSHOT_API_KEY", "KIMI_API_KEY"),
    "nebius.com": ("NEBIUS_API_KEY",),
    "nvidia.com": ("NVIDIA_API_KEY",),
    "openrouter.ai": ("OPENROUTER_API_KEY",),
    "perplexity.ai": ("PERPLEXITY_API_KEY",),
    "poe.com": ("POE_API_KEY",),
    "sambanova.ai": ("SAMBANOVA_API_KEY",),
    "together.xyz": ("TOGETHER_API_KEY",),
    "volces.com": ("ARK_API_KEY",),
    "x.ai": ("XAI_API_KEY",),
    "z.ai": ("ZAI_API_KEY",),
}
"""Public providers by their host, and the variables that hold their keys."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_BARE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")


def expanded(text: str) -> str:
    """The text with each `${NAME}` replaced by that environment variable. Raises `ValueError`,
    which names the variable, where one is not set.

    Those that name a server's own key may be missing; they are then empty.

    >>> expanded("${NO_SUCH_VARIABLE}")
    Traceback (most recent call last):
    ...
    ValueError: the environment variable NO_SUCH_VARIABLE is not set
    """

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ and name not in KEY_VARIABLES:
            raise ValueError(f"the environment variable {name} is not set")
        return os.environ.get(name, "")

    if _BARE.fullmatch(text):
        raise ValueError("a variable of the environment is written ${NAME}")
    if "${" in _VARIABLE.sub("", text):
        raise ValueError(
            "takes ${NAME} with a name of letters, digits and underscores, and nothing else between"
            " the braces"
        )
    return _VARIABLE.sub(value, text)


def provider_variables(base_url: str | None) -> tuple[str, ...]:
    """The environment variables that hold the key of a public provider, by the server's host; none
    for any other host.

    >>> (
    ...     provider_variables("https://api.cerebras.ai/v1"),
    ...     provider_variables("https://cerebras.ai.example.org/v1"),
    ... )
    (('CEREBRAS_API_KEY',), ())
    """
    host = urlsplit(base_url or "").hostname or ""
    return next(
        (
            names
            for domain, names in _PROVIDERS.items()
            if host == domain or host.endswith(f".{domain}")
        ),
        (),
    )
