"""Every figure of hand-made completions by hand, and how completions are sampled."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from hf_factuality.demos.closed_world import _numerator_and_weight
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.worlds import (
    World,
    WorldConfig,
    WorldModelConfig,
    WorldVerifier,
    build_world_model,
    build_world_tokenizer,
    evaluate_world,
    load_world,
)
from hf_factuality.worlds.evaluate import world_metrics


# Filmia Foldcroft was born in Silvton, which is in Hilmandia, in the year 1879, and married Drolsus; Cundton is in Gorlistan
# (tests/worlds/test_world.py pins this).
CONFIG = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3)
TINY = WorldModelConfig(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=4, steps=3, batch_size=4)
QUESTION = {"question": "Which country was Filmia Foldcroft born in?", "answer": "Hilmandia"}
REQUEST = {"question": "Tell me about Filmia Foldcroft.", "topic": "Filmia Foldcroft"}
FIGURES = json.loads((Path(__file__).parent / "figures.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = build_world_model(CONFIG, tmp_path_factory.mktemp("model") / "tiny", TINY, progress=False)
    model, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    return model, tok, load_world(folder)


def figures(row, completions, lengths=None):
    oracle = WorldVerifier(World(CONFIG))
    sentences = [oracle.read(text, row["question"], row) for text in completions]
    return world_metrics([row] * len(completions), completions, sentences, lengths)


@pytest.mark.parametrize("case", FIGURES, ids=["questions", "biographies"])
def test_figures(case):
    texts, lengths, _ = zip(*case["completions"], strict=True)
    found = figures(case["row"], texts, [length for length in lengths if length is not None])
    assert found == pytest.approx({n: v if v is None else float(Fraction(v)) for n, v in case["expected"].items()})


def test_precision_of_many_is_made_of_that_of_each():
    """As the demos' files of results do, whose intervals are over completions."""
    texts = [
        "Foldcroft was born in Silvton.",
        "Foldcroft was born in Paris. Hm?",
        "",
        "Foldcroft was born in Cundton. Eh.",
    ]
    parts = [_numerator_and_weight(figures(REQUEST, [text]), "precision") for text in texts]
    assert parts == [(1, 1), (0, 2), (0, 0), (0, 2)] and figures(REQUEST, texts)["precision"] == 1 / 5


def test_figures_of_nothing_are_unknown():
    found = figures(QUESTION, [])
    assert found.pop("n") == 0 and set(found.values()) == {None}
    assert {"n", *found} == set(FIGURES[1]["expected"])  # those of biographies
    found = figures(QUESTION, ["<think> </think><answer> Gorlistan </answer>"])
    assert {name for name, value in found.items() if value is None} == {
        "precision", "decided_precision", "factuality_score", "fact_free", "unparsable", "wrong_reasons", "tokens",
    }  # fmt: skip
    assert found["accuracy"] == found["right_for_right_reasons"] == found["reward"] == 0.0 and found["no_claim"] == 1.0


class Scripted(torch.nn.Module):
    """In the place of a model: goes on from each prompt as it is told to, and keeps what it was called with."""

    def __init__(self, tok, continuations):
        super().__init__()
        self.tok, self.continuations, self.calls = tok, continuations, []
        self.embedding = torch.nn.Embedding(1, 1)
        self.get_input_embeddings = lambda: self.embedding
        self.config, self.generation_config = LlamaConfig(), None

    def forward(self, input_ids):
        pass

    def generate(self, input_ids, attention_mask, **options):
        assert not self.training
        self.calls.append((input_ids, attention_mask, options))
        said = [self.continuations[self.tok.decode(row).replace("<pad>", "")].pop(0) for row in input_ids]
        rows = [self.tok(text, add_special_tokens=False)["input_ids"] for text in said]
        width = max(map(len, rows))
        rows = torch.tensor([row + [self.tok.pad_token_id] * (width - len(row)) for row in rows])
        return torch.cat([input_ids, rows], dim=1)


def test_lengths_and_order_of_completions():
    world = World(CONFIG)
    tok, questions = build_world_tokenizer(world), world.questions("test", 3)
    person = world.split("test")[0].short_name
    said = [
        f"<think> Few details about {person} survive. </think><answer> banking </answer><eos>",  # 11 tokens before the end
        "<think> </think><answer> banking </answer>",  # 5, cut off before the end
        "<eos>",
        "<think><user> <eos>",  # 3, of which a special one and the space
        "<think> The <eos>",
        "",
    ]
    prompts = [f"<bos><user>{text}<assistant>" for text in questions["question"]]
    model = Scripted(tok, {prompt: said[2 * n : 2 * n + 2] for n, prompt in enumerate(prompts)})
    found = evaluate_world(
        model, tok, world, questions, num_samples=2, batch_size=4, max_new_tokens=11, temperature=0.5
    )
    assert found.metrics["tokens"] == (11 + 5 + 0 + 3 + 3 + 0) / 6
    assert found.completions == [
        f"<think> Few details about {person} survive. </think><answer> banking </answer>",
        "<think> </think><answer> banking </answer>", "", "<think> ", "<think> The ", "",
    ]  # fmt: skip
    assert model.training and [len(ids) for ids, _, _ in model.calls] == [4, 2]
    asked = [tok.decode(row).replace("<pad>", "") for ids, _, _ in model.calls for row in ids]
    assert sorted(asked) == sorted(2 * prompts)
    for ids, mask, options in model.calls:
        assert torch.equal(mask, (ids != tok.pad_token_id).long())
        assert options["generation_config"].max_new_tokens == 11
        warm, _ = options["logits_processor"]
        assert warm.temperature == 0.5


def test_evaluate_world(loaded):
    model, tok, world = loaded
    questions = world.questions("test")
    model.train()
    torch.manual_seed(5)
    first = evaluate_world(model, tok, world, questions, num_samples=2, batch_size=7, max_new_tokens=6)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert drawn == torch.rand(1) and model.training
    model.eval()
    assert len(first.completions) == len(first.sentences) == first.metrics["n"] == 18
    again = evaluate_world(model, tok, world, questions, num_samples=2, batch_size=7, max_new_tokens=6)
    assert again == first and not model.training
    other = evaluate_world(model, tok, world, questions, num_samples=2, batch_size=7, max_new_tokens=6, seed=1)
    assert other.completions != first.completions
    rows = [row for row in questions for _ in range(2)]
    inputs = [VerifierInput(text, row["question"], row=row) for text, row in zip(first.completions, rows, strict=True)]
    assert first.verifications == WorldVerifier(world).verify(inputs)
    assert 0 < first.metrics["tokens"] <= 6
    biographies = evaluate_world(model, tok, world, world.biographies("test"), max_new_tokens=4).metrics
    assert biographies["n"] == 3 and "accuracy" not in biographies


@pytest.mark.slow
def test_the_models_own_sampling_settings_are_off(loaded, monkeypatch):
    """A model that knows nothing samples almost uniformly, unless top-k, top-p or another temperature keep it from it."""
    model, tok, world = loaded
    options = {"num_samples": 2, "batch_size": 7, "max_new_tokens": 6}
    questions = world.questions("test")
    sampled = evaluate_world(model, tok, world, questions, **options).completions
    greedy = evaluate_world(model, tok, world, questions, temperature=0, **options).completions
    assert sampled != greedy and greedy[0::2] == greedy[1::2]
    for name, value in (("top_k", 1), ("top_p", 0.01), ("temperature", 0.01), ("do_sample", True)):
        with monkeypatch.context() as patch:
            patch.setattr(model.generation_config, name, value)
            assert evaluate_world(model, tok, world, questions, **options).completions == sampled, name
            assert evaluate_world(model, tok, world, questions, temperature=0, **options).completions == greedy, name


def test_greedy_does_not_depend_on_padding(loaded):
    model, tok, world = loaded
    rows = world.questions("test").to_list()
    rows[0]["prompt"][0]["content"] += " They say."
    found = evaluate_world(model, tok, world, rows, temperature=0, max_new_tokens=6)
    for row, completion in zip(rows, found.completions, strict=True):
        ids = tok(f"<bos><user>{row['prompt'][0]['content']}<assistant>", add_special_tokens=False)["input_ids"]
        start = len(ids)
        while len(ids) < start + 6 and ids[-1] != tok.eos_token_id:
            with torch.inference_mode():
                ids.append(model(torch.tensor([ids])).logits[0, -1].argmax().item())
        assert tok.decode(ids[start:], skip_special_tokens=True) == completion
