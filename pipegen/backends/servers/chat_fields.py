"""Every field of a chat request, and whose servers take it: vLLM's, SGLang's, or OpenAI's own. One
list, for chat files, `extra_body`, the JSON Schema and the documentation.

The lists are those of vLLM 0.32.0, SGLang 0.5.23 and openai 3.54.0; tests hold them beside the
classes of those packages. A field that has no name of its own in pipegen is passed on as it is.

>>> dialects_of("ebnf"), dialects_of("logit_bias"), dialects_of("no_such_field")
(('sglang',), ('vllm', 'sglang', 'plain'), ())

`extra_body` of chat completions: which of its fields a dialect has.

>>> check_extra_body({"n": 2}, "plain").message
'extra_body.n is set by pipegen itself'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipegen.core.errors import UnsupportedOption
from pipegen.records.engine_list import shown

__all__ = ["FIELDS", "OWN", "REMOVED", "SERVERS", "check_extra_body", "dialects_of"]


_VLLM = """
    add_generation_prompt add_special_tokens allowed_token_ids bad_words cache_salt chat_template chat_template_kwargs continue_final_message documents
    ec_transfer_params echo frequency_penalty ignore_eos include_reasoning include_stop_str_in_output kv_transfer_params length_penalty logit_bias
    logprob_token_ids logprobs max_completion_tokens max_tokens media_io_kwargs messages min_p min_tokens mm_payload mm_processor_kwargs model n
    parallel_tool_calls presence_penalty priority prompt_logprobs reasoning_effort repetition_detection repetition_penalty request_id response_format
    return_mm_kwargs return_prompt_text return_token_ids return_token_offsets return_tokens_as_token_ids routed_experts_prompt_start seed session_id
    skip_special_tokens spaces_between_special_tokens stop stop_token_ids stream stream_interval stream_options structured_outputs temperature
    thinking_token_budget tool_choice tools top_k top_logprobs top_p truncate_prompt_tokens truncation_side use_beam_search user vllm_xargs watermarking
"""
_SGLANG = """
    bootstrap_host bootstrap_port bootstrap_room cache_salt chat_template_kwargs continue_final_message custom_logit_processor custom_params
    data_parallel_rank disagg_prefill_dp_rank ebnf extra_key frequency_penalty ignore_eos images_config input_ids logit_bias logprobs lora_path
    max_completion_tokens max_dynamic_patch max_tokens messages min_dynamic_patch min_p min_tokens mm_processor_kwargs model n no_stop_trim
    parallel_tool_calls presence_penalty priority reasoning_effort regex repetition_penalty response_format return_cached_tokens_details
    return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_hidden_states return_input_ids_in_sglext return_meta_info
    return_output_ids_in_sglext return_prompt_token_ids return_routed_experts return_sampling_mask return_spec_tokens_details return_token_ids rid
    routed_dp_rank routed_experts_start_len sampling_logprobs_mode seed separate_reasoning session_id session_params skip_special_tokens stop stop_regex
    stop_token_ids stream stream_options stream_reasoning task temperature thinking tool_choice tools top_k top_logprobs top_p use_audio_in_video user
    video_config watermark
"""
_OPENAI = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages metadata modalities model moderation n
    parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
    safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity
    web_search_options
"""
FIELDS: Mapping[str, frozenset[str]] = {
    "vllm": frozenset(_VLLM.split()),
    "sglang": frozenset(_SGLANG.split()),
    "plain": frozenset(_OPENAI.split()),
}
"""The fields of a request, by dialect."""
OWN = ("messages", "stream", "stream_options", "rid", "request_id", "input_ids")
"""Fields that pipegen sets itself, for each request another value."""
REMOVED: Mapping[str, str] = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
    "guided_decoding_backend": "",
}
"""Fields that vLLM had before `structured_outputs`, whose key each is now. A newer server ignores
them without a word, so they are never sent.
"""


def dialects_of(field: str) -> tuple[str, ...]:
    """The dialects whose servers take a field of this name."""
    return tuple(dialect for dialect, fields in FIELDS.items() if field in fields)


SERVERS = {"vllm": shown("vllm"), "sglang": shown("sglang"), "plain": "the server"}
"""What the dialects' servers are called in messages."""
OWN_FIELDS = ("messages", "n", "stream")
"""What `extra_body` must not change: answers are read by it."""


def check_extra_body(extra_body: Mapping[str, Any], dialect: str) -> UnsupportedOption | None:
    """The field of `extra_body` that pipegen sets itself, or that this dialect does not have, and
    another has. A plain server may be any: it is sent what else stands there.

    >>> check_extra_body({"separate_reasoning": True}, "vllm").option
    'separate_reasoning'
    >>> (
    ...     check_extra_body({"separate_reasoning": True}, "sglang") is None,
    ...     check_extra_body({"top_k": 5}, "plain") is None,
    ... )
    (True, True)
    """
    for name, value in extra_body.items():
        if name in OWN_FIELDS:
            return UnsupportedOption(
                f"extra_body.{name} is set by pipegen itself",
                option=name,
                hint="leave it out: requests, samples and stream(...) set it",
            )
        # which has a keyword of its own, and is SGLang's
        if dialect == "plain" and name != "separate_reasoning":
            continue
        if value is not None and name in REMOVED:
            words = f"extra_body.{name} is a field that vLLM has no more, and would ignore"
            return UnsupportedOption(
                words,
                option=name,
                hint="use json_schema, regex or choice, or structured_outputs as in vLLM",
            )
        others = [SERVERS[other] for other in dialects_of(name) if other != "plain"]
        if value is not None and others and dialect not in dialects_of(name):
            words = (
                f"extra_body.{name} is a field of {' and '.join(others)}, and the dialect is"
                f" {dialect!r}"
            )
            return UnsupportedOption(
                words, option=name, hint="leave it out, or set the server's own dialect"
            )
    return None
