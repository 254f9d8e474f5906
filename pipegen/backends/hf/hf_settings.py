"""The settings of the Hugging Face engine that can be refused before anything is loaded."""

from __future__ import annotations

from pipegen.backends.checkpoint.locate import adapters_of, check_adapters
from pipegen.engines.extras import need
from pipegen.engines.settings import ModelLoadConfig
from pipegen.records.fields import InvalidField

OWN = {
    **{
        name: name
        for name in ("dtype", "device_map", "attn_implementation", "revision", "trust_remote_code")
    },
    "torch_dtype": "dtype",
    "adapter_name_or_path": "adapter",
}
"""Arguments of `from_pretrained` that pipegen gives itself, and the field that says each."""
_ALONE = {"batch_size": 1, "prefix_memory_bytes": 0, "compile": False}
"""What settings say, if anything, where rows are computed one by one, each from its own tokens."""
_SPREAD = ("auto", "balanced", "balanced_low_0", "sequential")


def check_settings(load: ModelLoadConfig) -> None:
    """Raise `InvalidField` for a device that is not here, an adapter's folder that is not there,
    an argument that a field of the record says, and one that `deterministic` leaves no use for.

    Raises `MissingExtra` where a setting needs a package that is not installed.
    """
    for name in load.engine_kwargs:
        if name in OWN:
            raise InvalidField(
                f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'hf': set {OWN[name]}"
            )
        if name in ("config", "output_loading_info", "pretrained_model_name_or_path"):
            raise InvalidField(
                f"ModelLoadConfig.engine_kwargs takes no {name!r} for backend 'hf': pipegen sets it"
                " itself"
            )
    for name, value in _ALONE.items() if load.deterministic else ():
        if getattr(load, name) not in (None, value):
            raise InvalidField(
                f"ModelLoadConfig.{name} is not for a deterministic engine, which computes rows one"
                " by one: leave out either"
            )
    if load.device is not None:
        _check_device("device", load.device)
    if load.device_map is not None:
        need("accelerate", "hf", "device_map")
        if load.device_map not in _SPREAD:
            _check_device("device_map", load.device_map)
    if adapters_of(load):
        need("peft", "peft", "a LoRA adapter")
        check_adapters(load)
    if load.adapters and load.compile:
        raise InvalidField(
            "ModelLoadConfig.compile is for a model whose rows all have the same weights: leave it or"
            " adapters out"
        )


def _check_device(field: str, name: str) -> None:
    import torch

    try:
        device = torch.device(name)
        kind = torch.get_device_module(device)
    except RuntimeError:
        raise InvalidField(
            f"ModelLoadConfig.{field} takes a device such as cpu, cuda or cuda:1, not {name!r}"
        ) from None
    count = kind.device_count() if kind.is_available() else 0
    if (device.index or 0) >= count:
        here = f"{count} of the kind" if count else "none of the kind"
        raise InvalidField(
            f"ModelLoadConfig.{field}: there is no {name!r} here; torch {torch.__version__} finds"
            f" {here}: leave {field} out to take what is here"
        )
