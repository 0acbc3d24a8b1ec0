"""The build of a world's model: what it trains on, what it writes, and what happens when it is stopped."""

import hashlib
import json
import random
import subprocess
import sys
import threading
import time
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from hf_factuality.errors import CheckpointError
from hf_factuality.worlds import (
    SIZES,
    World,
    WorldConfig,
    WorldModelConfig,
    build_world_model,
    build_world_tokenizer,
    evaluate_world,
    lm,
    load_world,
    tokenizer,
)


CONFIG = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3)
TINY = WorldModelConfig(hidden_size=32, intermediate_size=64, num_layers=1, num_heads=4, steps=3, batch_size=4)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "worlds"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return build_world_model(CONFIG, tmp_path_factory.mktemp("model") / "tiny", TINY, progress=False)


def build(output_dir=None, config=CONFIG, model_config=TINY, **options):
    return build_world_model(config, output_dir, model_config, progress=False, **options)


def weights(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def visible(folder):
    """Names of the models in a folder: without locks."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def curve(folder):
    return [json.loads(line) for line in (folder / "training_curve.jsonl").read_text("utf-8").splitlines()]


def rows_of(world, tok, config, group):
    """Prompt, answer and ids of every row, read back from the batches of a group."""
    batches, _ = lm._batches(world, tok, config, group)
    for input_ids, labels in batches:
        for ids, kept in zip(input_ids.tolist(), labels.tolist(), strict=True):
            masked = [label == -100 for label in kept]
            start = masked.index(False)
            end = len(kept) - masked[::-1].index(False)
            assert not any(masked[start:end]) and kept[start:end] == ids[start:end]
            assert set(ids[end:]) <= {tok.pad_token_id} and tok.pad_token_id not in ids[:end]
            yield tok.decode(ids[:start]), tok.decode(ids[start:end]), ids[:end]


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", "bf16"])
def test_bfloat16_only_where_the_cpu_computes_in_it(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, name: False})
    float32 = weights(build(tmp_path / "float32"))
    monkeypatch.setattr(torch, "autocast", lambda *args, enabled, **options: torch.amp.autocast(*args, enabled=False))
    assert weights(build(tmp_path / "same")) == float32
    monkeypatch.undo()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True})
    assert weights(build(tmp_path / "half")) != float32


def test_batches():
    world, config = World(replace(CONFIG, max_hops=3)), replace(TINY, questions=0.4, short_answers=0.3)
    tok = build_world_tokenizer(world)
    batches, mean_tokens = lm._batches(world, tok, config, 0)
    assert len(batches) == 16 and all(a.shape == b.shape and a.shape[0] == 4 for a, b in batches)
    kinds = {"biography": 0, "question": 0, "short": 0}
    labels, lengths, hops = 0, [], set()
    for prompt, answer, ids in rows_of(world, tok, config, 0):
        assert prompt.startswith("<bos><user>") and prompt.endswith("<assistant>")
        assert answer.endswith("<eos>") and answer.count("<eos>") == 1
        request = prompt.removeprefix("<bos><user>").removesuffix("<assistant>")
        asked = world.parse_question(request)
        if asked.relation is None:
            kinds["biography"] += 1
            # Everything is said of whom the request names.
            assert answer.count(".") >= 3 and "<think>" not in answer
        elif asked.hops == 1:
            kinds["short"] += 1
            assert answer.count(".") == 1 and "<think>" not in answer
        else:
            kinds["question"] += 1
            hops.add(asked.hops)
            assert answer.startswith("<think>") and answer.endswith(" </answer><eos>")
        lengths.append(len(ids))
        labels += len(ids) - prompt.count(" ") - len([c for c in prompt if c in "?."]) - 4
    assert sum(kinds.values()) == 64 and hops == {2, 3}
    for kind, share in (("question", 0.4), ("short", 0.3), ("biography", 0.3)):
        assert abs(kinds[kind] - 64 * share) < 4 * (64 * share * (1 - share)) ** 0.5
    # Tokens that are not prompt: the prompt has three markers, its first word, a word per space and one mark.
    assert mean_tokens == labels / 16
    # Texts of like length share a batch; the batches come in random order.
    groups = [sorted(lengths[start : start + 4]) for start in range(0, 64, 4)]
    assert sorted(lengths) == [length for group in sorted(groups) for length in group]
    assert [max(group) for group in groups] != sorted(max(group) for group in groups)


def test_batches_are_a_function_of_the_group():
    world, tok = World(CONFIG), build_world_tokenizer(World(CONFIG))

    def texts(group, config=TINY):
        return list(rows_of(world, tok, config, group))

    assert texts(2) == texts(2) and texts(2) != texts(1)
    assert texts(2) != texts(2, replace(TINY, seed=1))


def test_few_people_at_first():
    """40 people while the first 5 % of the steps last, everybody after 40 % (here 160 of 400 steps: group 10)."""
    world, config = World(WorldConfig(num_people=200)), replace(TINY, steps=400, batch_size=16)
    tok = build_world_tokenizer(world)

    def ranks(group):
        found = (world.find_person(prompt) for prompt, _, _ in rows_of(world, tok, config, group))
        return [world.people.index(person) for person in found]

    assert max(ranks(0)) < 40 and max(ranks(1)) < 40
    # Group 5 begins at step 80: (0.2 - 0.05) / 0.35 = 3/7 of the way from log 40 to log 200, 40 * 5 ** (3/7) = 79.7.
    assert 40 < max(ranks(5)) < 80
    assert max(ranks(10)) > 150 and max(ranks(24)) > 150


def test_learning_rate():
    """Of 1000 steps: 50 of warm-up, peak until 300, then down to 0."""
    rates = [lm._learning_rate(step, 1000) for step in (0, 24, 49, 150, 300, 475, 650, 1000)]
    assert rates == pytest.approx([0.02, 0.5, 1, 1, 1, 0.75, 0.5, 0])


def test_model_directory(model_dir):
    model, tok = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    assert model.config.vocab_size == len(tok) and model.config.tie_word_embeddings
    assert model.config.hidden_size == 32 and model.config.num_hidden_layers == 1
    assert model.config.max_position_embeddings == tok.model_max_length == 256
    assert model.generation_config.eos_token_id == tok.eos_token_id == tok.convert_tokens_to_ids("<eos>")
    assert model.generation_config.pad_token_id == tok.pad_token_id == tok.convert_tokens_to_ids("<pad>")
    assert all(torch.isfinite(weight).all() for weight in model.parameters())
    assert tok.get_vocab() == build_world_tokenizer(World(CONFIG)).get_vocab() and tok.chat_template
    assert model_dir.stat().st_mode & 0o777 == 0o755
    (point,) = curve(model_dir)
    labels = sum((labels != -100).sum().item() for _, labels in lm._batches(World(CONFIG), tok, TINY, 0)[0][:3])
    assert point["step"] == 3 and point["tokens"] == labels and 1 < point["loss"] < 20


def test_build_is_reproducible_and_leaves_everything_else_alone(model_dir, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.manual_seed(5)
        random.seed(5)
        again = build(tmp_path / "again")
        drawn = torch.rand(1), random.random()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    torch.manual_seed(5)
    random.seed(5)
    assert drawn == (torch.rand(1), random.random())
    assert weights(again) == weights(model_dir)
    assert weights(build(tmp_path / "other", model_config=replace(TINY, seed=1))) != weights(model_dir)


def test_training_lowers_the_loss(tmp_path, model_dir):
    def loss(folder):
        model, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        input_ids, labels = lm._batches(World(CONFIG), tok, TINY, 1000)[0][0]
        return model(input_ids=input_ids, labels=labels).loss.item()

    longer = build(tmp_path / "longer", steps=70)
    assert loss(longer) < 0.8 * loss(model_dir)
    points = curve(longer)
    assert [point["step"] for point in points] == [20, 40, 60, 70]
    losses, tokens = ([point[name] for point in points] for name in ("loss", "tokens"))
    assert losses[3] < 0.8 * losses[0] and 0 < tokens[0] < tokens[1] < tokens[2] < tokens[3]


def test_every_token_weighs_the_same(tmp_path):
    """The loss is the sum over the batch's labels, by their mean number in the batches of a group."""
    world, config = World(CONFIG), replace(TINY, steps=1)
    (point,) = curve(build(tmp_path / "model", model_config=config))
    tok = build_world_tokenizer(world)
    batches, mean_tokens = lm._batches(world, tok, config, 0)
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(0)
        model = LlamaForCausalLM(lm._llama_config(tok, config))
        log_probs = model(batches[0][0]).logits.log_softmax(-1)
    pairs = zip(*(labels.tolist() for labels in batches[0]), log_probs, strict=True)
    total = sum(-row[i - 1, label].item() for _, kept, row in pairs for i, label in enumerate(kept) if label != -100)
    count = sum((labels != -100).sum().item() for labels in batches[0][1:])
    assert abs(count / mean_tokens - 1) > 0.1  # or this test says nothing
    assert point["loss"] == pytest.approx(total / mean_tokens, rel=0.01)


def test_the_second_call_finds_the_model(cache, monkeypatch):
    first = build()
    assert first.parent == cache and visible(cache) == [first.name]
    monkeypatch.setattr(lm, "_train", lambda *args: pytest.fail("trained again"))
    assert build() == first
    # Who is held out changes neither texts nor weights.
    assert build(config=replace(CONFIG, split_seed=9)) == first
    # Whole and decimal numbers are one setting.
    assert lm._record(WorldConfig(filler=0), TINY) == lm._record(WorldConfig(filler=0.0), TINY)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        build(steps=4)


def test_every_setting_but_the_split_makes_another_model(cache, monkeypatch):
    monkeypatch.setattr(lm, "_is_built", lambda target, record: True)
    others = {
        "language": "zh",
        "tokenizer": "bpe",
        "learning_rate": 0.1,
        "num_heads": 2,
        "hidden_size": 64,
        "declined": 0.5,
    }

    def changed(config):
        for field in fields(config):
            value = getattr(config, field.name)
            if field.name != "split_seed":
                other = others.get(field.name) or (value + 1 if isinstance(value, int) else value / 2 + 0.1)
                assert other != value
                yield replace(config, **{field.name: other})

    # Headroom for "one more" in every size.
    world = replace(CONFIG, num_attributes=3, num_values=10, num_targets=2, stated=0.3)
    found = [build(config=world), *(build(config=other) for other in changed(world))]
    found += [build(config=world, model_config=other) for other in changed(TINY)]
    monkeypatch.setattr(lm, "VERSION", lm.VERSION + 1)
    found.append(build(config=world))
    number = 1 + len(fields(WorldConfig)) - 1 + len(fields(WorldModelConfig)) + 1
    assert len(found) == len(set(found)) == number and {path.parent for path in found} == {cache}


def test_where_models_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(lm, "_is_built", lambda target, record: True)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HF_FACTUALITY_CACHE", "~/mine")
    assert build().parent == tmp_path / "mine" / "worlds"
    monkeypatch.setenv("HF_FACTUALITY_CACHE", "~/mine/answers.sqlite")  # as the cache of answers takes it
    assert build().parent == tmp_path / "mine" / "worlds"
    for value in ("", None):
        monkeypatch.setenv("HF_FACTUALITY_CACHE", value) if value == "" else monkeypatch.delenv("HF_FACTUALITY_CACHE")
        assert build().parent == tmp_path / ".cache" / "hf_factuality" / "worlds"


class Killed(BaseException):
    pass


@pytest.fixture
def killed_at(monkeypatch):
    """Has a build end before it takes step number `count`, counted over all builds; returns the steps that were begun."""

    def arrange(count):
        def rate(step, steps):
            seen.append(step)
            if len(seen) == count:
                raise Killed
            return rate_before(step, steps)

        seen, rate_before = [], lm._learning_rate
        monkeypatch.setattr(lm, "SAVE_SECONDS", -1.0)
        monkeypatch.setattr(lm, "_learning_rate", rate)
        return seen

    return arrange


@pytest.mark.slow
def test_a_killed_build_goes_on(tmp_path, killed_at):
    """Killed at step 37, three groups in: the last state is that of step 32, in the middle of a point of the curve."""
    whole, seen = build(tmp_path / "whole", steps=50), killed_at(38)
    with pytest.raises(Killed):
        build(tmp_path / "killed", steps=50)
    assert seen == list(range(38)) and not (tmp_path / "killed").exists()
    torch.manual_seed(77)
    found = build(tmp_path / "killed", steps=50)
    assert seen[38:] == list(range(32, 50))
    assert weights(found) == weights(whole) and curve(found) == curve(whole)
    # Nothing is left of the state, and it was that of this model only.
    assert visible(tmp_path) == ["killed", "whole"]


def test_the_state_of_another_model_is_not_taken(tmp_path, killed_at):
    seen = killed_at(20)
    with pytest.raises(Killed):
        build(tmp_path / "model", steps=40)
    build(tmp_path / "model", steps=18)
    assert seen == [*range(20), *range(18)]


def test_interrupted_while_saving(cache, monkeypatch):
    def interrupted(model, tok, record, points, folder):
        save(model, tok, record, points, folder)
        raise KeyboardInterrupt

    save = lm._save
    monkeypatch.setattr(lm, "_save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build()
    assert visible(cache) == []
    monkeypatch.setattr(lm, "_save", save)
    assert {"config.json", "model.safetensors", "tokenizer.json", "world.json"} < set(visible(build()))
    assert len(visible(cache)) == 1


def test_two_builds_at_once_give_one_model(cache, monkeypatch):
    train, entered, found = lm._train, [], []
    started, go_on = threading.Event(), threading.Event()

    def slow(*args):
        entered.append(threading.get_ident())
        started.set()
        assert go_on.wait(600)
        return train(*args)

    monkeypatch.setattr(lm, "_train", slow)
    threads = [threading.Thread(target=lambda: found.append(build()), daemon=True) for _ in range(2)]
    threads[0].start()
    assert started.wait(600)
    threads[1].start()
    time.sleep(0.3)
    assert threads[1].is_alive() and len(entered) == 1 and visible(cache) == []
    go_on.set()
    for thread in threads:
        thread.join(600)
    assert len(entered) == 1 and len(found) == 2 and found[0] == found[1]
    assert visible(cache) == [found[0].name]


def test_does_not_overwrite_something_else(tmp_path, model_dir):
    (tmp_path / "notes.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(CheckpointError, match="holds something else than the requested world model"):
            build(place)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match="holds something else"):
        build(model_dir, steps=4)
    assert build(model_dir) == model_dir
    (tmp_path / "new" / "empty").mkdir(parents=True)
    assert weights(build(tmp_path / "new" / "empty")) == weights(model_dir)


def test_settings_that_cannot_be(tmp_path):
    with pytest.raises(ValueError, match=r"size='huge' is unknown; choose one of \['demo', 'tiny', 'small', 'base'\]"):
        build_world_model(size="huge")
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        build(steps=0)
    with pytest.raises(ValueError, match="tokenizer='char'"):
        build(tmp_path / "model", model_config=replace(TINY, tokenizer="char"))
    assert not (tmp_path / "model").exists()


def test_bpe_and_chinese_models(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer, "BPE_TEXTS", 500)
    for language in ("en", "zh"):
        config = replace(CONFIG, language=language, max_hops=3)
        folder = build(tmp_path / language, config, replace(TINY, tokenizer="bpe"), steps=2)
        tok = AutoTokenizer.from_pretrained(folder)
        assert len(tok) > 256 and tok.decode(tok("Zürich 东")["input_ids"]) == "Zürich 东"
        assert curve(folder)[-1]["step"] == 2 and load_world(folder).people == World(config).people
    folder = build(tmp_path / "characters", config, steps=2)
    assert len(AutoTokenizer.from_pretrained(folder)) < 400 and curve(folder)[-1]["step"] == 2


@pytest.mark.parametrize("size", list(SIZES))
def test_a_size_stands_for_its_settings(size, monkeypatch):
    records = []
    monkeypatch.setattr(lm, "_is_built", lambda target, record: records.append(record) or True)
    build_world_model(size=size, steps=7)
    build_world_model(CONFIG, size=size)
    build_world_model(model_config=TINY, size=size)
    world, model = (asdict(config) for config in SIZES[size])
    assert [({"compound": 0.0, "stated": 0.0, "declined": 0.2, **record["world"]}, record["model"]) for record in records] == [
        (world, {**model, "steps": 7}), (asdict(CONFIG), model), (world, asdict(TINY)),
    ]  # fmt: skip


def test_models_from_before_there_were_compound_sentences_are_found():
    """Their `world.json` has no such setting, and the hash of it is the folder's name."""
    before = lm._record(CONFIG, TINY)["world"]
    assert "compound" not in before and WorldConfig(**{**before, "split_seed": None}) == replace(
        CONFIG, split_seed=None
    )
    assert lm._record(replace(CONFIG, compound=0.3), TINY)["world"] == {**before, "compound": 0.3}
    assert lm._record(replace(CONFIG, declined=0.3), TINY)["world"] == before
    assert lm._record(replace(CONFIG, stated=0.3), TINY)["world"] == {**before, "stated": 0.3, "declined": 0.2}


def test_load_world(model_dir):
    world = load_world(model_dir)
    assert world.config == CONFIG and world.people == World(CONFIG).people
    other = load_world(model_dir, split_seed=4)
    assert other.people == world.people and other.split("test") == World(replace(CONFIG, split_seed=4)).split("test")
    assert other.split("test") != world.split("test") == World(CONFIG).split("test")


@pytest.mark.parametrize(
    "text",
    [None, "", "[]", "{}", '{"world": null}', '{"world": {"no_such_field": 1}}', '{"world": {"num_people": 1}}',
     '{"world": {"language": "de"}}', '{"world": "en"}', '{"world": {"num_people": "six"}}', b"\xff"],
)  # fmt: skip
def test_load_world_without_description(tmp_path, text):
    if text is not None:
        (tmp_path / "world.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(CheckpointError, match="world.json does not describe a world"):
        load_world(tmp_path)


@pytest.mark.slow
def test_processes_that_are_killed_and_that_meet(tmp_path, monkeypatch):
    """A build killed by the system, then two processes that go on with it at once."""
    code = (
        "from hf_factuality.worlds import build_world_model, lm, WorldConfig, WorldModelConfig; lm.SAVE_SECONDS = -1.0;"
        "print(build_world_model(WorldConfig(num_people=50), {!r}, WorldModelConfig(hidden_size=64, steps=160,"
        "intermediate_size=128, batch_size=8), progress=False))"
    )

    def start(place):
        return subprocess.Popen([sys.executable, "-c", code.format(str(place))], stdout=subprocess.PIPE, text=True)

    whole, killed = start(tmp_path / "whole"), start(tmp_path / "killed")
    deadline = time.monotonic() + 600
    while not list(tmp_path.glob(".killed-*.partial/state.pt")):
        assert time.monotonic() < deadline and killed.poll() is None
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed").exists()
    both = [start(tmp_path / "killed") for _ in range(2)]
    assert [process.communicate(timeout=900)[0].split()[-1] for process in both] == [str(tmp_path / "killed")] * 2
    assert whole.wait(900) == 0
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    assert visible(tmp_path) == ["killed", "whole"]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "parameters"), [("small", 30e6), ("base", 100e6)])
def test_the_larger_sizes_as_they_are(size, parameters, tmp_path):
    """Two steps of four texts. A minute, and 4 GB of memory for the larger one."""
    config, model_config = SIZES[size]
    folder = build(tmp_path / size, config, replace(model_config, batch_size=4), steps=2)
    model = LlamaForCausalLM.from_pretrained(folder)
    assert model.num_parameters() == pytest.approx(parameters, rel=0.2)
    assert curve(folder)[-1]["step"] == 2 and load_world(folder).config == config
    assert Path(folder / "tokenizer.json").is_file()


@pytest.mark.slow
def test_the_demo_model_has_room_to_improve(tmp_path):
    """It knows the facts and reasons carelessly. Two minutes."""
    folder = build_world_model(output_dir=tmp_path / "model", size="demo", progress=False)
    model, tok = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    world = load_world(folder)
    for split in ("train", "test"):
        questions = world.questions(split)
        sampled = evaluate_world(model, tok, world, questions, num_samples=2).metrics
        assert 0.55 <= sampled["accuracy"] <= 0.85
        assert 0.70 <= sampled["precision"] <= 0.90
        assert sampled["format"] > 0.95 and sampled["unparsable"] < 0.03
        assert 0.2 < sampled["right_for_right_reasons"] < 0.65 and 0.15 < sampled["no_claim"] < 0.4
        greedy = evaluate_world(model, tok, world, questions, temperature=0).metrics
        assert greedy["accuracy"] > 0.85 and greedy["precision"] > 0.9


def test_a_directory_that_was_filled_meanwhile_is_named(tmp_path, monkeypatch):
    save = lm._save

    def overtaken(*args):
        save(*args)
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").touch()

    monkeypatch.setattr(lm, "_save", overtaken)
    with pytest.raises(CheckpointError, match="cannot move the model"):
        build_world_model(CONFIG, tmp_path / "out", TINY, progress=False)
