"""LoRA and DoRA adapters: what their folders say, and whether all of one belongs to a model.

An engine silently drops what it does not know of an adapter, and leaves modules without weights. So
all of it must match, or it is refused by name. Weights are read from `adapter_model.safetensors`,
else from `adapter_model.bin`: of that, tensors alone.
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pipegen.backends.checkpoint.checkpoint import Checkpoint
from pipegen.backends.checkpoint.load_errors import broken_file, header, stored_names
from pipegen.backends.checkpoint.locate import files_of_adapter

_MAGNITUDE = ".lora_magnitude_vector"
_SUFFIX = re.compile(r"\.(lora_\w+|base_layer)(\.default)?(\.weight|\.bias)?$")


class BadAdapter(ValueError):
    """An adapter that is not one of the model's, as a whole, or that cannot be read."""

    hint = "use the adapter that was made for this model, or the model it was made for"


class ChangesOtherRows(BadAdapter):
    """An adapter that would change the answers of rows that have another, or none."""

    hint = "load it for all rows, with adapter= in the place of adapters="


def refuse_parts(
    adapter: str, foreign: Collection[str], missing: Collection[str], *, matched: bool
) -> None:
    """Raise `BadAdapter` where the model has no place for some weights of the adapter (`foreign`),
    or modules that it is for get none (`missing`).

    >>> refuse_parts("mine", [], ["layers.1.q_proj.lora_A"], matched=True)
    Traceback (most recent call last):
    ...
    pipegen.backends.checkpoint.adapters.BadAdapter: the adapter 'mine' matches the model in part: 1 weights of its modules are missing, such as layers...
    """
    problems = (
        [f"the model has no module for {len(foreign)} of its weights, such as {min(foreign)}"]
        if foreign
        else []
    )
    problems += (
        [f"{len(missing)} weights of its modules are missing, such as {min(missing)}"]
        if missing
        else []
    )
    if problems:
        raise BadAdapter(
            f"the adapter {adapter!r}"
            f" {'matches the model in part' if matched else 'matches nothing of the model'}:"
            f" {'; '.join(problems)}"
        )


def adapter_config(adapter: str) -> Mapping[str, Any]:
    """What `adapter_config.json` says. Raises `BadAdapter` where it is not there or no JSON
    object.
    """
    file = files_of_adapter(adapter).cached("adapter_config.json")
    try:
        settings = None if file is None else json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise BadAdapter(
            f"the adapter {adapter!r} has no adapter_config.json that is a JSON object: it is no"
            " LoRA adapter of peft's"
        )
    return settings


def largest_rank(config: Mapping[str, Any]) -> int:
    """The largest rank of an adapter's modules: `r` (peft's default is 8), or one of
    `rank_pattern`.

    >>> largest_rank({"r": 8, "rank_pattern": {"q_proj": 32}})
    32
    """
    return int(max([config.get("r", 8), *(config.get("rank_pattern") or {}).values()]))


def check_adapter(checkpoint: Checkpoint, adapter: str) -> None:
    """Whether all of the adapter belongs to the checkpoint's model: neither weights for modules
    that it has not, nor target modules without weights.

    For engines that do not tell: names are compared, no weights are read. Raises `BadAdapter`.
    """
    config, shapes = adapter_config(adapter), weight_shapes(adapter)
    if (form := config.get("peft_type", "LORA")) != "LORA":
        raise BadAdapter(f"the adapter {adapter!r} has the form {form}; LoRA is expected")
    names, model = frozenset(shapes), _without_weights(checkpoint)
    check_shapes(adapter, config, shapes, model)
    modules = frozenset(name for name, _ in model.named_modules())
    all_modules = modules | {name.rsplit(".", 1)[0] for name in stored_names(checkpoint.files)}
    of = {name: _module_of(name) for name in names}
    foreign = [name for name in names if of[name] not in all_modules]
    adapted = {module for name, module in of.items() if ".lora_" in name}
    adaptable = {module for module in modules if _targets(config, module)} | (adapted & all_modules)
    has = {(of[name], _kind(name)) for name in names}
    missing = [
        f"{module}.lora_{half}"
        for module in adaptable
        for half in "AB"
        if not {(module, half), (module, f"embedding_{half}")} & has
    ]
    refuse_parts(adapter, foreign, missing, matched=len(foreign) < len(names))


def weight_shapes(adapter: str) -> Mapping[str, tuple[int, ...]]:
    """The names of the adapter's weights, and their shapes. Raises `BadAdapter` where it has none,
    or no whole file of them.
    """
    file = files_of_adapter(adapter).cached("adapter_model.safetensors")
    if file is None:
        return {name: tuple(tensor.shape) for name, tensor in _of_bin(adapter, "meta").items()}
    broken = broken_file([file])
    if broken is not None:
        raise BadAdapter(broken.words)
    try:
        return {name: tuple(tensor["shape"]) for name, tensor in header(file).items()}
    except (ValueError, KeyError, TypeError) as error:
        raise BadAdapter(str(error)) from error


def adapt_head(adapters: Iterable[str]) -> bool:
    """Whether one of the adapters has weights for the model's last layer. Raises `BadAdapter`."""
    return "lm_head" in str([*map(weight_shapes, adapters)])


def tensors_of(adapter: str, config: Mapping[str, object]) -> Mapping[str, object] | None:
    """The adapter's weights, where transformers reads its file not as peft does: one of PyTorch's,
    and DoRA, whose `lora_magnitude_vector` is a module today. None for any other.
    """
    file = files_of_adapter(adapter).cached("adapter_model.safetensors")
    if file is not None and not config.get("use_dora"):
        return None
    from safetensors.torch import load_file

    tensors = load_file(file) if file is not None else _of_bin(adapter, "cpu")
    return {
        f"{name}.weight" if name.endswith(_MAGNITUDE) else name: tensor
        for name, tensor in tensors.items()
    }


def _of_bin(adapter: str, device: str) -> Mapping[str, Any]:
    """The tensors of `adapter_model.bin`. Nothing else is unpickled."""
    import torch

    file = files_of_adapter(adapter).cached("adapter_model.bin")
    if file is None:
        raise BadAdapter(
            f"the adapter {adapter!r} has no adapter_model.safetensors and no adapter_model.bin"
        )
    broken = broken_file([file])
    if broken is not None:
        raise BadAdapter(broken.words)
    try:
        tensors = torch.load(file, map_location=device, weights_only=True)
    except (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise BadAdapter(
            f"{file} is not read as a file of tensors alone ({reason}): save it as"
            " adapter_model.safetensors"
        ) from error
    if not isinstance(tensors, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor)
        for name, tensor in tensors.items()
    ):
        raise BadAdapter(f"{file} holds other things than names and their tensors")
    return tensors


def check_shapes(
    adapter: str, config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]], model: Any
) -> None:
    """Raise `BadAdapter` where a weight has another shape than its module of the model takes, or
    the weights are DoRA's and the configuration does not say so.
    """
    magnitude = next((name for name in shapes if name.endswith(_MAGNITUDE)), None)
    if magnitude is not None and not config.get("use_dora"):
        raise BadAdapter(
            f"the adapter {adapter!r} has weights of DoRA, such as {magnitude}, and its"
            " adapter_config.json has no use_dora"
        )
    modules = dict(model.named_modules())
    for name, shape in shapes.items():
        path = _module_of(name)
        expected = _shape_for(modules.get(path), name, _rank_of(config, path))
        if expected not in (None, shape):
            base = config.get("base_model_name_or_path")
            raise BadAdapter(
                f"the adapter {adapter!r} does not fit: lora_{_kind(name)} of {path} has the shape"
                f" {list(shape)}, and {list(expected or ())} is expected"
                + (f"; it was made for {base!r}" if base else "")
            )


def _shape_for(module: object, name: str, rank: int) -> tuple[int, ...] | None:
    """The shape of a weight for its module; None for other modules and weights."""
    sides = (
        [getattr(module, side, None) for side in pair]
        for pair in (("in_features", "out_features"), ("nx", "nf"))
    )
    inputs, outputs = next((pair for pair in sides if None not in pair), (None, None))
    if inputs is None or outputs is None or name.endswith(".bias"):
        return None
    return {
        "A": (rank, inputs),
        "B": (outputs, rank),
        _MAGNITUDE.removeprefix(".lora_"): (outputs,),
    }.get(_kind(name))


def _rank_of(config: Mapping[str, Any], path: str) -> int:
    """The rank of a module's pair, by peft's rule."""
    patterns: Mapping[str, int] = config.get("rank_pattern") or {}
    named = (rank for key, rank in patterns.items() if re.match(rf"(.*\.)?({key})$", path))
    return int(next(named, config.get("r", 8)))


def _without_weights(checkpoint: Checkpoint) -> Any:
    """The model, made without weights."""
    import torch
    import transformers

    hf: Any = transformers
    kind = hf.AutoModelForImageTextToText if checkpoint.is_vision_model else hf.AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(
            checkpoint.config, trust_remote_code=checkpoint.load.trust_remote_code
        )


def _module_of(name: str) -> str:
    """The module that a weight of the adapter is for."""
    path = name.removeprefix("base_model.model.")
    if ".lora_" not in path:
        return path.rsplit(".", 1)[0]
    while _SUFFIX.search(path):
        path = _SUFFIX.sub("", path)
    return path


def _kind(name: str) -> str:
    """Which half of a pair a weight is: `A`, `B`, `embedding_A`, ..."""
    match = re.search(r"\.lora_(\w+)", name)
    return match[1] if match else ""


def _targets(config: Mapping[str, object], module: str) -> bool:
    """Whether the adapter is for that module, by peft's rules; False where it is for some layers
    only, or for kinds of modules: its weights say which then.
    """
    targets = config.get("target_modules")
    if config.get("layers_to_transform") is not None or targets in (None, "all-linear"):
        return False
    left_out = (config.get("exclude_modules") or [], config.get("modules_to_save") or [])
    return _names(targets, module) and not any(_names(pattern, module) for pattern in left_out)


def _names(pattern: Any, module: str) -> bool:
    if isinstance(pattern, str):
        return re.fullmatch(pattern, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in pattern)
