import json
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.errors import CheckpointError
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.worlds import (
    World,
    WorldConfig,
    WorldModelConfig,
    build_world_model,
    evaluate_world,
    lm,
    load_world,
)
from hf_factuality.worlds.evaluate import extract_answer, score_completions
from hf_factuality.worlds.oracle import WorldVerifier
from hf_factuality.worlds.world import RELATIONS


CONFIG = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3)
TINY = WorldModelConfig(hidden_size=32, intermediate_size=64, num_layers=1, steps=3, batch_size=4)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "worlds"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build_world_model(CONFIG, tmp_path_factory.mktemp("model") / "tiny", TINY, progress=False)


def texts(world):
    rng = random.Random(0)
    for person in world.people:
        yield world.biography(person, rng)
        yield from world.evidence(person)
        for relation in RELATIONS:
            yield world.question(person, relation)
            yield world.demonstration(person, relation, rng)


@pytest.fixture(scope="module")
def default_tokenizer(tmp_path_factory, model_dir):
    """Tokenizer of the default world after saving and loading."""
    folder = tmp_path_factory.mktemp("tokenizer")
    lm.build_world_tokenizer(World()).save_pretrained(folder)
    (folder / "config.json").write_bytes((model_dir / "config.json").read_bytes())
    return AutoTokenizer.from_pretrained(folder)


def test_tokenizer_round_trip(default_tokenizer):
    for text in texts(World()):
        ids = default_tokenizer(text)["input_ids"]
        assert default_tokenizer.unk_token_id not in ids
        assert default_tokenizer.decode(ids, skip_special_tokens=True) == text
        # Every token is a piece of the text, so that a part of the ids decodes to a part of the text.
        assert "".join(default_tokenizer.decode([token]) for token in ids) == text


def test_tags_are_kept_and_markers_are_not(default_tokenizer):
    text = "<bos><user>Which<assistant><think> They </think><answer> banking </answer><eos>"
    ids = default_tokenizer(text)["input_ids"]
    assert len(ids) == 11
    assert default_tokenizer.decode(ids, skip_special_tokens=False) == text
    kept = "Which<think> They </think><answer> banking </answer>"
    assert default_tokenizer.decode(ids, skip_special_tokens=True) == kept


def test_unknown_words_do_not_crash(default_tokenizer):
    ids = default_tokenizer("Which Zürich?")["input_ids"]
    assert ids[1] == default_tokenizer.unk_token_id and len(ids) == 3


def test_chat_template(default_tokenizer):
    messages = [{"role": "user", "content": "Which country?"}, {"role": "assistant", "content": "They say."}]
    text = default_tokenizer.apply_chat_template(messages, tokenize=False)
    assert text == "<bos><user>Which country?<assistant>They say.<eos>"
    prompt = default_tokenizer.apply_chat_template(messages[:1], tokenize=False, add_generation_prompt=True)
    assert prompt + "They say.<eos>" == text
    encoded = default_tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    assert encoded["assistant_masks"] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(Exception, match="roles user and assistant"):
        default_tokenizer.apply_chat_template([{"role": "system", "content": "They"}], tokenize=False)


def test_training_batches():
    world = World(CONFIG)
    tokenizer = lm.build_world_tokenizer(world)
    batches = lm._batches(world, tokenizer, TINY)
    biographies = answers = 0
    for _ in range(16):
        input_ids, labels, mean_tokens = next(batches)
        assert input_ids.shape == labels.shape and input_ids.shape[0] == 4 and 12 < mean_tokens / 4 < 40
        for ids, kept in zip(input_ids.tolist(), labels.tolist(), strict=True):
            target = tokenizer.decode([token for token in kept if token != -100])
            prompt = tokenizer.decode([token for token, label in zip(ids, kept, strict=True) if label == -100])
            prompt = prompt.replace("<pad>", "")
            assert target.endswith("<eos>") and target.count("<eos>") == 1
            if prompt == "<bos>":
                biographies += 1
                assert "<" not in target.removesuffix("<eos>")
            else:
                answers += 1
                assert prompt.startswith("<bos><user>Which ") and prompt.endswith("?<assistant>")
                assert extract_answer(target.removesuffix("<eos>"))
    assert biographies > 10 and answers > 10


def test_model_directory(model_dir):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    assert model.config.vocab_size == len(tokenizer) and model.config.tie_word_embeddings
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<eos>")
    assert model.generation_config.pad_token_id == tokenizer.pad_token_id == tokenizer.convert_tokens_to_ids("<pad>")
    assert (model_dir / "model.safetensors").is_file()
    assert load_world(model_dir).people == World(CONFIG).people
    assert all(torch.isfinite(weight).all() for weight in model.parameters())


def test_build_is_reproducible_and_leaves_random_numbers_alone(model_dir, tmp_path):
    torch.manual_seed(5)
    random.seed(5)
    again = build_world_model(CONFIG, tmp_path / "again", TINY, progress=False)
    drawn = torch.rand(1), random.random()
    torch.manual_seed(5)
    random.seed(5)
    assert drawn == (torch.rand(1), random.random())
    assert (again / "model.safetensors").read_bytes() == (model_dir / "model.safetensors").read_bytes()


def test_training_lowers_the_loss(tmp_path, model_dir):
    def loss(folder):
        model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        input_ids, labels, _ = next(lm._batches(World(CONFIG), tokenizer, TINY))
        return model(input_ids=input_ids, labels=labels).loss.item()

    longer = build_world_model(CONFIG, tmp_path / "longer", TINY, steps=60, progress=False)
    assert loss(longer) < 0.85 * loss(model_dir)


def test_cache(cache, monkeypatch):
    first = build_world_model(CONFIG, model_config=TINY, progress=False)
    assert first.parent == cache and [path.name for path in cache.iterdir()] == [first.name]
    monkeypatch.setattr(lm, "_train", lambda *args: pytest.fail("trained again"))
    assert build_world_model(CONFIG, model_config=TINY, progress=False) == first
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        build_world_model(CONFIG, model_config=TINY, steps=4, progress=False)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        build_world_model(WorldConfig(**{**CONFIG.__dict__, "seed": 4}), model_config=TINY, progress=False)
    monkeypatch.setattr(lm, "VERSION", lm.VERSION + 1)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        build_world_model(CONFIG, model_config=TINY, progress=False)


def test_interrupted_build_leaves_nothing(cache, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(lm, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_world_model(CONFIG, model_config=TINY, progress=False)
    assert list(cache.iterdir()) == []


def test_second_of_two_builders_uses_the_first(cache, monkeypatch):
    train, entered = lm._train, []

    def overtaken(*args):
        entered.append(True)
        if len(entered) == 1:
            # Another process starts later and finishes earlier.
            other.append(build_world_model(CONFIG, model_config=TINY, progress=False))
            (other[0] / "mark").touch()
        return train(*args)

    other = []
    monkeypatch.setattr(lm, "_train", overtaken)
    found = build_world_model(CONFIG, model_config=TINY, progress=False)
    assert len(entered) == 2 and found == other[0] and (found / "mark").exists()
    assert [path.name for path in cache.iterdir()] == [found.name]


def test_does_not_overwrite_something_else(tmp_path, model_dir):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="holds something else"):
        build_world_model(CONFIG, tmp_path, TINY, progress=False)
    with pytest.raises(CheckpointError, match="holds something else"):
        build_world_model(CONFIG, model_dir, TINY, steps=4, progress=False)
    assert build_world_model(CONFIG, model_dir, TINY, progress=False) == model_dir


def test_load_world_without_description(tmp_path):
    with pytest.raises(CheckpointError, match="does not describe a world"):
        load_world(tmp_path)
    (tmp_path / "world.json").write_text(json.dumps({"world": {"no_such_field": 1}}))
    with pytest.raises(CheckpointError, match="does not describe a world"):
        load_world(tmp_path)


@pytest.mark.parametrize(
    "completion, answer",
    [
        ("<think> They. </think><answer> Gorlistan </answer>", "Gorlistan"),
        ("<think></think>\n<answer>Gorlistan</answer>\n", "Gorlistan"),
        ("<think> They. </think><answer> Gorlistan", None),
        ("They. </think><answer> Gorlistan </answer>", None),
        ("<think> <think> They. </think><answer> Gorlistan </answer>", None),
        ("<think> They. </think><answer> Gorlistan </answer> They.", None),
        ("", None),
    ],
)
def test_extract_answer(completion, answer):
    assert extract_answer(completion) == answer


def test_figures_of_hand_made_completions():
    world = World(CONFIG)
    # Foldcroft was born in Cundton, which is in Gorlistan.
    row = {"question": "Which country was Drarlo Foldcroft born in?", "answer": "Gorlistan", "evidence": []}
    completions = [
        # Right, two true sentences.
        "<think> Foldcroft was born in Cundton. Cundton is in Gorlistan. </think><answer> Gorlistan </answer>",
        # Right, one false and one true sentence.
        "<think> Foldcroft was born in Hondmouth. Hondmouth is in Hilmandia. </think><answer> Gorlistan </answer>",
        # Right, no claim.
        "<think> </think><answer> Gorlistan </answer>",
        # Wrong, no claim, one sentence.
        "<think> Let us think about Foldcroft. </think><answer> Hilmandia </answer>",
        # Wrong, one true sentence.
        "<think> They say Foldcroft comes from Cundton. </think><answer> Hilmandia </answer>",
        # No answer, one true and one unverifiable sentence.
        "<think> Foldcroft was born in Cundton. Cundton is",
    ]
    found = score_completions([row] * 6, completions, WorldVerifier(world))
    assert found.metrics == {
        "n": 6,
        "accuracy": 3 / 6,
        "factuality": 5 / 6,
        "no_claim": 2 / 6,
        "right_and_factual": 1 / 6,
        "format": 5 / 6,
        "sentences": 8 / 6,
        "unverifiable": 1 / 8,
        "unjudged": 0,
    }
    assert found.completions == completions and len(found.verifications) == 6


def test_unjudged_completions_are_left_out():
    class Broken:
        def verify(self, inputs):
            supported = Verification(spans=(LabeledSpan(0, 4, Label.SUPPORTED),))
            failed = Verification(spans=(LabeledSpan(0, 4, None),))
            return [Verification(error="no judge"), failed, supported]

    row = {"question": "Which?", "answer": "A", "evidence": ["A."]}
    found = score_completions([row] * 3, ["<think> They. </think><answer> A </answer>"] * 3, Broken()).metrics
    assert found["unjudged"] == 2 and found["accuracy"] == 1.0
    assert found["factuality"] == found["right_and_factual"] == found["sentences"] == 1.0
    assert found["no_claim"] == found["unverifiable"] == 0.0


def test_figures_of_nothing_are_unknown():
    metrics = score_completions([], [], WorldVerifier(World(CONFIG))).metrics
    assert metrics["n"] == 0 and metrics["unjudged"] == 0
    assert all(metrics[name] is None for name in set(metrics) - {"n", "unjudged"})
    row = {"question": "Which?", "answer": "A", "evidence": []}
    metrics = score_completions([row], ["<think> </think><answer> A </answer>"], WorldVerifier(World(CONFIG))).metrics
    assert metrics["factuality"] is None and metrics["unverifiable"] is None and metrics["no_claim"] == 1.0


def test_evaluate_world(model_dir):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    world = load_world(model_dir)
    questions = world.questions("test")
    model.train()
    torch.manual_seed(5)
    first = evaluate_world(model, tokenizer, world, questions, num_samples=2, batch_size=7, max_new_tokens=6)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert drawn == torch.rand(1) and model.training
    assert len(first.completions) == len(first.verifications) == first.metrics["n"] == 18
    again = evaluate_world(
        model, tokenizer, WorldVerifier(world), questions, num_samples=2, batch_size=7, max_new_tokens=6
    )
    assert again.completions == first.completions
    other = evaluate_world(model, tokenizer, world, questions, num_samples=2, max_new_tokens=6, seed=1)
    assert other.completions != first.completions
    # A model that knows nothing samples almost uniformly: top-k and top-p, on by default in many models, are off.
    model.generation_config.top_k = 1
    sampled = evaluate_world(model, tokenizer, world, questions, num_samples=2, batch_size=7, max_new_tokens=6)
    assert sampled.completions == first.completions


def test_greedy_does_not_depend_on_padding(model_dir):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    world = load_world(model_dir)
    questions = world.questions("test")
    longer = questions.to_list()
    longer[0]["prompt"][0]["content"] += " They say."
    one = evaluate_world(model, tokenizer, world, questions, temperature=0, max_new_tokens=6)
    mixed = evaluate_world(model, tokenizer, world, longer, temperature=0, max_new_tokens=6)
    assert mixed.completions[1:] == one.completions[1:]


@pytest.mark.slow
def test_built_model_has_room_to_improve(tmp_path):
    """The default model: knows the facts, reasons carelessly. Two minutes."""
    folder = build_world_model(output_dir=tmp_path / "model", progress=False)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    world = load_world(folder)
    for split in ("train", "test"):
        questions = world.questions(split)
        sampled = evaluate_world(model, tokenizer, world, questions, num_samples=2).metrics
        assert 0.55 <= sampled["accuracy"] <= 0.80
        assert 0.70 <= sampled["factuality"] <= 0.88
        assert sampled["format"] > 0.95 and sampled["unverifiable"] < 0.03
        assert sampled["right_and_factual"] < 0.6
        greedy = evaluate_world(model, tokenizer, world, questions, temperature=0).metrics
        assert greedy["accuracy"] > 0.85 and greedy["factuality"] > 0.9
