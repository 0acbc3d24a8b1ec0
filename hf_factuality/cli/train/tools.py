"""GRPO on rollouts that search: answers are paid, and what they state by what the search returned (docs/tools.md).

    hf-factuality train tools                       # a small policy and a corpus of a closed world, minutes on a CPU
    hf-factuality index pages.jsonl --out kb.sqlite --bm25
    accelerate launch --config_file recipes/accelerate/zero2.yaml -m hf_factuality train tools \
        --config recipes/tools/qwen3-4b.yaml --dataset_name my-org/questions --knowledge kb.sqlite
"""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from trl import ModelConfig, ScriptArguments, get_peft_config, get_quantization_config

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, load_verifier
from hf_factuality.cli.shared import meaning
from hf_factuality.cli.train.shared import load_split, model_name, read_flags, set_model_kwargs, train_and_publish
from hf_factuality.demos.searching import SearchDemo
from hf_factuality.methods.tools.reward import CitationReward, DecliningReward, SearchCost, StatedAnswerReward
from hf_factuality.retrieval import CorpusRetriever, SearchEnvironment
from hf_factuality.verifiers.registry import VERIFIER_HELP, served_arguments


SEARCH = (
    "Search before you answer. Then answer in one or two sentences. Cite the passages that support a sentence by their numbers at its "
    "end, as in [1], and state nothing that none of them says. If they do not tell, answer I don't know."
)


@dataclass
class ToolArguments(ScriptArguments):
    knowledge: str | None = field(
        default=None, metadata={"help": meaning("knowledge", "; FILE.bm25 is beside it (hf-factuality index --bm25)")}
    )
    max_searches: int = field(default=4, metadata={"help": "Searches of a rollout, at most."})
    search_passages: int = field(default=3, metadata={"help": "Passages that a search returns, at most."})
    search_characters: int = field(default=600, metadata={"help": "Characters of a passage that a search shows."})
    search_price: float = field(default=0.05, metadata={"help": "Price of each search after the first."})
    citations: Literal["statement", "end", "none"] = field(
        default="statement", metadata={"help": "Where citations are paid: at the statement, at the end, or nowhere."}
    )
    citation_weight: float = field(default=1.0, metadata={"help": "Weight of the reward for citations at the end."})
    verifier: str = field(default="small", metadata={"help": meaning("verifier", f": {VERIFIER_HELP}")})
    verifier_base_url: str | None = field(default=None, metadata={"help": meaning("verifier_base_url")})
    verifier_tokens: int | None = field(default=None, metadata={"help": meaning("verifier_tokens")})


TYPES = ToolArguments, FactGRPOConfig, ModelConfig


def load_search_questions(script):
    """The columns `question` and `answer`, with the question as a prompt that asks for a search."""
    dataset = load_split(script, ("question", "answer"))
    form = {"role": "system", "content": SEARCH}
    return dataset.map(lambda row: {"prompt": [form, {"role": "user", "content": row["question"]}]})


def load_search(script):
    """What makes the search of a rollout."""
    if not script.knowledge:
        raise ValueError("name what the policy searches with --knowledge: a knowledge base of hf-factuality index")
    retriever = CorpusRetriever(script.knowledge, f"{script.knowledge}.bm25", top_k=script.search_passages)
    return partial(
        SearchEnvironment, retriever, max_calls=script.max_searches, max_passages=script.search_passages,
        max_characters=script.search_characters,
    )  # fmt: skip


def make_search_trainer(script, name, training, dataset, model, verifier, environment, outcome):
    citations, rewards, weights = script.citations, [outcome, SearchCost(script.search_price), DecliningReward()], None
    if citations == "end":
        rewards.append(CitationReward(verifier, at="end"))
        weights = [1.0, 1.0, 1.0, script.citation_weight]
    training.reward_weights = training.reward_weights or weights
    paid = [CitationReward(verifier)] if citations == "statement" else None
    return FactGRPOTrainer(
        name, rewards, training, dataset, verifier=verifier, token_reward_funcs=paid, environment_factory=environment,
        peft_config=get_peft_config(model), quantization_config=get_quantization_config(model),
    )  # fmt: skip


def main(words):
    own, script, training, model = read_flags("tools", TYPES, words, ("--dataset_name", "--knowledge"))
    served = served_arguments(script.verifier_base_url, script.verifier_tokens)
    if own:
        demo, name, dataset = None, model_name(model), load_search_questions(script)
        environment, outcome = load_search(script), StatedAnswerReward()
        verifier = load_verifier(script.verifier, **served)
    else:
        demo = SearchDemo(training.output_dir)
        name, dataset, verifier = str(demo.model_dir), demo.train_dataset, demo.verifier
        environment, outcome = demo.environment, demo.search_world.outcome
    set_model_kwargs(training, model)
    trainer = make_search_trainer(script, name, training, dataset, model, verifier, environment, outcome)
    train_and_publish(trainer, script.dataset_name, demo)
