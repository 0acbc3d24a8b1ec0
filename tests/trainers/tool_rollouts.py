"""Rollouts with tools on tiny models: what the policy calls is scripted, everything else is the real path."""

import functools
import json

import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl.chat_template_utils import llama3_1_chat_template, qwen3_5_think_chat_template, qwen3_chat_template

from hf_factuality import FactGRPOTrainer, TokenRewardPPOTrainer
from tests.tiny import save_tiny_model
from tests.trainers.recording import RecordsLosses


# Name -> chat template, end of a turn, and a call of `search` as its model writes it.
TEMPLATES = {
    "qwen3": (qwen3_chat_template, "<|im_end|>", '<tool_call>\n{{"name": "search", "arguments": {{"query": {query}}}}}\n</tool_call>'),
    "qwen3.5": (
        qwen3_5_think_chat_template, "<|im_end|>",
        "<tool_call>\n<function=search>\n<parameter=query>\n{query}\n</parameter>\n</function>\n</tool_call>",
    ),
    "llama3.1": (llama3_1_chat_template, "<|eot_id|>", '{{"name": "search", "parameters": {{"query": {query}}}}}'),
}  # fmt: skip
MARKERS = ["<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"]


def save_tool_model(folder, template: str) -> str:
    """The tiny model with a chat template that calls tools; words of the template that end a turn end a text."""
    save_tiny_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat, end, _ = TEMPLATES[template]
    tokenizer.add_special_tokens({"eos_token": end, "extra_special_tokens": MARKERS})
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.chat_template = chat
    tokenizer.save_pretrained(folder)
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    model.config.max_position_embeddings = 4096
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    return str(folder)


def call(template: str, query: str) -> str:
    text = TEMPLATES[template][2]
    return text.format(query=query if template == "qwen3.5" else json.dumps(query))


def search(query: str) -> str:
    """
    Searches for passages.

    Args:
        query: What to look for.

    Returns:
        Passages with their numbers.
    """
    return f"[1] {query} is a town in Poland.\n[2] Nobody lives there."


class ScriptedCalls:
    """In turn `n` the rows of `script[n]` write these texts, and the others what is sampled."""

    script: list[dict[int, str]] = []

    def _generate_and_score_completions(self, inputs):
        self.turn = 0
        return super()._generate_and_score_completions(inputs)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        told = self.script[self.turn] if self.turn < len(self.script) else {}
        self.turn += 1
        for row, text in told.items():
            if row < len(ids):
                ids[row] = [
                    *self._tokenizer(text, add_special_tokens=False)["input_ids"],
                    self._tokenizer.eos_token_id,
                ]
        return ids, logprobs


class StockTools(ScriptedCalls, RecordsLosses, GRPOTrainer):
    pass


class FactTools(ScriptedCalls, RecordsLosses, FactGRPOTrainer):
    pass


class PPOTools(ScriptedCalls, RecordsLosses, TokenRewardPPOTrainer):
    pass


@functools.cache
def two_calls(template: str) -> list[dict[int, str]]:
    """The first row searches twice and answers, the second one searches once; the others do not."""
    thought = "Hm.\n</think>\n\n" * (template == "qwen3.5")  # whose template opens the block
    turns = [
        {0: f"Let me look. {call(template, 'Warsaw')}", 1: call(template, "London")},
        {0: f"It is in Poland [1]. {call(template, 'Vellin')}", 1: "London is in Poland [1]."},
        {0: "Vellin is a town [3]. Nobody lives there."},
    ]
    return [{row: thought + text for row, text in turn.items()} for turn in turns]
