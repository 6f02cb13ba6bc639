"""Make a tiny random model (Qwen3 or Llama) that a server can load without a hub, in a server's own environment.

usage: tiny_model.py FOLDER [--tokenizer-only | --llama]
"""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VOCABULARY = 8_192
MAX_POSITIONS = 262_144
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]

TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' -}}
{%- elif m.role == 'assistant' -%}
{{- '<|im_start|>assistant\\n' + (m.content or '') -}}
{%- for c in m.tool_calls or [] -%}
{{- '\\n<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' -}}
{%- if c.function.arguments is string -%}
{{- c.function.arguments -}}
{%- else -%}
{{- c.function.arguments | tojson -}}
{%- endif -%}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def texts(limit: int = 6_000_000) -> Iterator[str]:
    """Sources of the standard library: text that every Python has."""
    size = 0
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")
        yield text
        size += len(text)
        if size > limit:
            return


def make_tokenizer(folder: Path) -> int:
    """Train and save a byte-level BPE tokenizer; returns the id of the end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(ADDED),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    tokenizer.add_tokens(ADDED)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    end = tokenizer.token_to_id("<|im_end|>")
    assert end is not None
    return int(end)


def config(eos: int, *, llama: bool) -> Any:
    """Two layers, four heads, 64 wide: prefill is what costs, as with a large model."""
    from transformers import LlamaConfig, Qwen3Config

    return (LlamaConfig if llama else Qwen3Config)(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        dtype="bfloat16",
    )


def main(folder: Path, *, tokenizer_only: bool, llama: bool) -> None:
    """Write the model's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    eos = make_tokenizer(folder)
    configuration = config(eos, llama=llama)
    if tokenizer_only:
        configuration.architectures = ["Qwen3ForCausalLM"]
        configuration.save_pretrained(folder)
    else:
        import torch
        from transformers import LlamaForCausalLM, Qwen3ForCausalLM

        torch.manual_seed(0)
        (LlamaForCausalLM if llama else Qwen3ForCausalLM)(configuration).to(torch.bfloat16).save_pretrained(
            folder, safe_serialization=True
        )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), tokenizer_only="--tokenizer-only" in sys.argv[2:], llama="--llama" in sys.argv[2:])
