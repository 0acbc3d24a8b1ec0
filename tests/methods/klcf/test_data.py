"""Checklists: which statements become items, by hand and by a closed world; the command; what a trainer makes of them."""

import json
import random
import re
import sys
from collections import Counter
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
from huggingface_hub import DatasetCard

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.cli import main
from hf_factuality.data import (
    ChecklistConfig,
    GivenResponses,
    checklists_from,
    preferences_from,
    push_checklists,
    read_questions,
)
from hf_factuality.errors import DataError, HubError
from hf_factuality.methods.klcf.data import choose_items
from hf_factuality.methods.klcf.reward import ChecklistReward
from hf_factuality.methods.klcf.statements import SampledClaim
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import FActScoreExtractor, LLMJudge, VerifierPipeline
from hf_factuality.verifiers.base import Judgement
from hf_factuality.worlds import World, WorldConfig, WorldVerifier
from tests.data.cases import cases
from tests.data.test_build_preferences import PEOPLE, questions, responses, table, write
from tests.generation.fake_server import FakeServer
from tests.hub.loopback import hub  # noqa: F401


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED
ROWS = [{"id": f"q{i}", "question": f"Question {i}?", "topic": f"t{i}", "evidence": "e"} for i in range(3)]


class Letters:
    """A word is a claim ("_" is a space in it), and its last letter says what it is."""

    requires_evidence = False
    labels = {"s": S, "c": C, "u": U, "n": N, "h": HS, "x": HC, "?": None}

    def verify(self, inputs):
        found = []
        for item in inputs:
            words = item.completion.split()
            claims = [
                LabeledSpan(0, len(item.completion), self.labels[w[-1]], claim=w[:-1].replace("_", " ")) for w in words
            ]
            found.append(Verification(claims=tuple(claims)))
        return found


def build(folder, *texts, rows=ROWS[:1], verifier=None, **items):
    """`texts` are what the samples of every question say."""
    sampler = GivenResponses({row["id"]: texts for row in rows})
    config = ChecklistConfig(**items)
    return checklists_from(read_questions(rows), sampler, verifier or Letters(), folder, items=config, progress=False)


def report(folder):
    return json.loads((folder / "report.json").read_text())


def command(*argv):
    try:
        return main(["build-checklists", *map(str, argv)])
    except SystemExit as stopped:  # of the parser
        return stopped.code


# Items


@pytest.mark.parametrize(
    ("claims", "items", "dropped"),
    [
        ([(0, "k", S), (1, "b", S), (2, "b", S)], [("b", 2), ("k", 1)], {}),
        ([(0, "k", S), (0, "k", S), (1, "b", S), (1, "k", None), (2, "k", U)], [("k", 3), ("b", 1)], {}),
        ([(0, "k", C), (1, "k", U), (2, "k", None), (3, "k", N), (4, "k", HS)], [], {}),
        ([(0, "k", S), (1, "k", S), (2, "k", C)], [("k", 3)], {}),
        ([(0, "k", S), (1, "k", C)], [], {"tied": 1}),
        ([(0, "k", S), (1, "k", HS), (2, "k", C)], [("k", 3)], {}),
        ([(0, "k", S), (1, "k", C), (2, "k", HC), (0, "k", S)], [], {"contradicted": 1}),
        ([(0, "Al", S), (1, "al", S), (2, "al", S)], [("al", 3)], {}),  # the wording of most
        ([(0, "a" * 1001, S), (0, "...", S), (0, "", S), (0, "b" * 1000, S)], [("b" * 1000, 1)], {"too_long": 3}),
        ([(0, str(n), S) for n in range(25)], [(str(n), 1) for n in range(20)], {"beyond_max_items": 5}),
        ([], [], {}),
    ],
)  # fmt: skip
def test_items_of_one_question(claims, items, dropped):
    counts = Counter()
    claims = [SampledClaim(*claim) for claim in claims]
    assert choose_items(claims, ChecklistConfig(), counts) == items
    merged = counts.pop("merged", 0)
    assert +counts == dropped
    # Every supported claim is an item, was merged into one, or was dropped.
    assert sum(claim.label is S for claim in claims) == len(items) + merged + sum(dropped.values())


def test_what_is_important():
    claims = [SampledClaim(n, text, S) for text, samples in (("k", 1), ("b", 3), ("c", 2)) for n in range(samples)]
    for config, expected in (({"min_samples": 2}, "bc"), ({"max_items": 1}, "b"), ({"min_samples": 3}, "b")):
        assert "".join(text for text, _ in choose_items(claims, ChecklistConfig(**config), Counter())) == expected


def test_the_dataset_its_report_and_its_card(tmp_path):
    dataset = build(tmp_path, "ks bc ?? dn", "ks es eh bu", None, "gh", rows=ROWS[:2])
    assert dataset.to_list() == [
        {"id": row["id"], "prompt": [{"role": "user", "content": row["question"]}], "question": row["question"],
         "topic": row["topic"], "evidence": ["e"], "checklist": ["k", "e"], "counts": [2, 1]}
        for row in ROWS[:2]
    ]  # fmt: skip
    found = report(tmp_path)
    assert found["claims"] == {
        "supported": 6, "hedged_supported": 4, "unverifiable": 2, "hedged_contradicted": 0, "contradicted": 2, "no_fact": 2,
        "unknown": 2,
    }  # fmt: skip
    assert (found["questions"], found["rows"], found["items"], found["merged"]) == (2, 2, 4, 2)
    assert (found["responses"], found["lost_responses"]) == (6, 2) and found["questions_by_items"] == {"2": 2}
    assert set(found["dropped"].values()) == {0}
    card = DatasetCard.load(tmp_path / "README.md")
    assert (
        "4 statements that 6 responses of a model to 2 questions" in card.text
        and "| items min_samples | 1 |" in card.text
    )
    assert "| responses that could not be sampled | 2 |" in card.text and str(tmp_path) not in str(card)
    loaded = datasets.load_dataset(str(tmp_path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == dataset.to_list()


def test_questions_without_items(tmp_path):
    class OnlyFirst(Letters):
        def verify(self, inputs):
            found = super().verify(inputs)
            return [
                v if item.question == "Question 0?" else Verification() for item, v in zip(inputs, found, strict=True)
            ]

    with pytest.raises(
        DataError, match="nothing is left for .*checklists.parquet; dropped: 3 questions without any item"
    ):
        build(tmp_path, "kc", "bu", rows=ROWS)
    assert not (tmp_path / "checklists.parquet").exists() and report(tmp_path)["claims"]["contradicted"] == 3
    for keep, ids in ((False, ["q0"]), (True, ["q0", "q1", "q2"])):
        dataset = build(tmp_path / "b", "ks", rows=ROWS, verifier=OnlyFirst(), keep_empty=keep)
        assert dataset["id"] == ids and list(map(len, dataset["checklist"])) == [1, 0, 0][: len(ids)]
        assert report(tmp_path / "b")["dropped"]["no_items"] == 2


def test_responses_that_cannot_be_judged_are_unknown(tmp_path):
    class Fails(Letters):
        def verify(self, inputs):
            if any("b" in item.completion for item in inputs):
                raise RuntimeError("no")
            return super().verify(inputs)

    dataset = build(tmp_path, "ks", "bc", "ks", verifier=Fails())
    assert dataset["counts"] == [[2]] and report(tmp_path)["dropped"]["not_judged"] == 1


def test_text_that_parquet_cannot_hold(tmp_path):
    dataset = build(tmp_path, "\ud800ks <script>s **b**s", "|\x00s", rows=[{**ROWS[0], "question": "\udfff?"}])
    assert dataset["checklist"] == [["?k", "<script>", "**b**", "|\x00"]] and dataset["question"] == ["??"]


def test_rules_change_without_sampling(tmp_path):
    asked = []

    class Counting(Letters):
        def verify(self, inputs):
            asked.extend(inputs)
            return super().verify(inputs)

    assert build(tmp_path, "ks bs", "ks", verifier=Counting())["checklist"] == [["k", "b"]]
    verifier = Counting()
    assert build(tmp_path, "ks bs", "ks", verifier=verifier, min_samples=2)["checklist"] == [["k"]]
    assert len(asked) == 2
    with pytest.raises(DataError, match="nothing is left"):
        build(tmp_path, "ks bs", "ks", verifier=verifier, min_samples=3)
    with pytest.raises(DataError, match="is no .*README.md|is no .*checklists.parquet"):
        push_checklists(tmp_path, "lists")
    assert not (tmp_path / "README.md").exists() and len(asked) == 2


def test_two_builders_in_one_folder(tmp_path):
    given = read_questions(ROWS[:1]), GivenResponses({"q0": ["ks", "bc"]}), Letters(), tmp_path
    checklists_from(*given, progress=False)
    before = (tmp_path / "README.md").read_bytes()
    with pytest.raises(
        DataError, match="dataset was 'checklists.parquet', now 'pairs.parquet'; use the same, or another"
    ):
        preferences_from(*given, progress=False)
    assert (tmp_path / "README.md").read_bytes() == before
    settings = json.loads((tmp_path / "settings.json").read_text())
    del settings["dataset"], settings["hf_factuality"]  # as a run of pairs before there were other builders
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(DataError, match="dataset was 'pairs.parquet', now 'checklists.parquet'"):
        checklists_from(*given, progress=False)
    (tmp_path / "settings.json").write_text("[]")
    with pytest.raises(DataError, match="is no file of settings"):
        checklists_from(*given, progress=False)


def test_dense(tmp_path, monkeypatch):
    """With a library that takes all for the same; without one it is refused before anything is done."""
    with pytest.raises(ImportError, match=r"pip install hf_factuality\[dense\]"):
        ChecklistConfig(merge="dense")

    class Model:
        def __init__(self, name, device=None):
            names.append(name)

        def encode(self, texts, **kwargs):
            return np.ones((len(texts), 3))

    names = []
    module = SimpleNamespace(SentenceTransformer=Model, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    said = "Ada_was_born_in_Yorks Ada_died_in_Hulls", "Ada_came_alive_in_Yorks", "Ada_turned_up_in_Yorkc"
    for merge, counts in (("lexical", [1, 1, 1]), ("dense", [3, 1]), ("dense:a/b", [3, 1])):
        assert build(tmp_path / merge.replace("/", ""), *said, merge=merge)["counts"] == [counts]
    assert names == ["sentence-transformers/all-MiniLM-L6-v2", "a/b"]
    build(tmp_path / "local", *said, merge="dense:/home/ada/models/mini")
    assert "items merge | dense:mini |" in (tmp_path / "local" / "README.md").read_text()  # the card goes to the Hub

    def unknown(name, device=None):
        raise OSError(f"no model {name}")

    module.SentenceTransformer = unknown
    with pytest.raises(OSError, match="no model a/c"):
        build(tmp_path / "early", *said, merge="dense:a/c")
    assert not (tmp_path / "early").exists()


def test_more_samples_than_there_are(tmp_path):
    sampler = SimpleNamespace(describe=lambda: {"num_samples": 8})
    with pytest.raises(ValueError, match="min_samples=9 is more than the num_samples=8 of the sampler"):
        checklists_from(
            read_questions(ROWS), sampler, Letters(), tmp_path / "run", items=ChecklistConfig(min_samples=9)
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"max_items": 0}, "max_items and min_samples >= 1, got 0 and 1"),
        ({"min_samples": 0}, "got 20 and 0"),
        ({"merge": "fuzzy"}, "got 'fuzzy'"),
        ({"merge": "lexical:x"}, "got .lexical:x. and 0.95"),
        ({"merge_threshold": 0.0}, "merge_threshold <= 1; got 'lexical' and 0.0"),
        ({"merge_threshold": float("nan")}, "and nan"),
    ],
)
def test_values_out_of_range(items, message):
    with pytest.raises(ValueError, match=message):
        ChecklistConfig(**items)


# The closed world


WORLD = World(WorldConfig(num_people=40, seed=3))


class Oracle(WorldVerifier):
    def __init__(self):
        super().__init__(WORLD)


def told(person, rng):
    """A biography, and which of its sentences state a fact truly and plainly."""
    sentences, true = [], set()
    for relation in rng.sample(WORLD.relations, 5):
        value = person.facts[relation.name] if rng.random() < 0.6 else rng.choice(WORLD.values[relation.name])
        plain = rng.random() < 0.8
        template = rng.choice(relation.careful if plain else relation.hedged)
        sentences.append(template.format(name=person.short_name, value=value))
        if plain and value == person.facts[relation.name]:
            true.add(sentences[-1])
    return " ".join(sentences), true


def test_a_persons_checklist_is_what_the_samples_state_truly(tmp_path):
    rng = random.Random(1)
    rows = [{"id": p.name, "question": WORLD.request(p), "topic": p.name} for p in WORLD.people[:12]]
    samples = {p.name: [told(p, rng) for _ in range(8)] for p in WORLD.people[:12]}
    given = [{"id": name, "responses": [text for text, _ in of]} for name, of in samples.items()]
    flags = ["--responses", write(tmp_path / "r.jsonl", given), "--verifier", "tests.methods.klcf.test_data:Oracle"]
    assert command(write(tmp_path / "q.jsonl", rows), *flags, "--max_items", 99, "--out", tmp_path / "run") == 0
    dataset = datasets.Dataset.from_parquet(str(tmp_path / "run" / "checklists.parquet"))
    assert len(dataset) == 12
    for row in dataset:
        texts = [text for text, _ in samples[row["id"]]]
        expected = Counter({it: sum(it in text for text in texts) for _, true in samples[row["id"]] for it in true})
        assert dict(zip(row["checklist"], row["counts"], strict=True)) == expected
        assert row["counts"] == sorted(row["counts"], reverse=True) and max(row["counts"]) > 1
    false = {s for of in samples.values() for text, true in of for s in text.split(". ")}
    assert len(false) > 200  # most of what was said is no item


# The command


def test_the_command(tmp_path, capsys):
    out = tmp_path / "run"
    given = [questions(tmp_path), "--responses", responses(tmp_path), "--out", out]
    assert command(*given) == 0
    dataset = datasets.Dataset.from_parquet(str(out / "checklists.parquet"))
    assert dataset["checklist"] == [[f"{n} was born in Leeds.", f"{n} died in York."] for n in PEOPLE]
    assert dataset["counts"] == [[2, 1]] * len(PEOPLE)
    printed = capsys.readouterr().out
    assert table(printed) == {
        "questions": "5", "responses": "15", "rows": "5", "items": "10", "merged": "5", "claims, supported": "15",
        "claims, contradicted": "15", **{name: "0" for name in table(printed) if "dropped" in name or "that" in name},
        "responses cut off at the limit, kept": "0",
    }  # fmt: skip
    assert command(*given, "--min-samples", 2) == 0
    assert datasets.Dataset.from_parquet(str(out / "checklists.parquet"))["counts"] == [[2]] * len(PEOPLE)
    assert command(*given, "--min-samples", 3) == 2 and "10 statements of fewer" in capsys.readouterr().err


def test_eight_samples_of_a_model(tmp_path, tiny_model):
    few = ["--max_new_tokens", 5, "--dtype", "float32", "--verifier", "tests.data.test_build_preferences:Initial"]
    out = tmp_path / "run"
    assert command(questions(tmp_path, ["Ada", "Ben"]), "--model", tiny_model, *few, "--out", out) == 0
    assert report(out)["responses"] == 16
    assert json.loads((out / "settings.json").read_text())["sampling"]["num_samples"] == 8


@cases("refusals", "flags of build-checklists")
def test_bad_flags(tmp_path, capsys, case):
    assert command(questions(tmp_path), *case["flags"], "--out", tmp_path / "run") == 2
    assert case["message"] in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_push(tmp_path, hub):  # noqa: F811
    build(tmp_path, "ks")
    push_checklists(tmp_path, "lists", private=True)
    repo = hub.repos["dataset", "someone/lists"]
    assert repo.private and set(repo.files()) == {"checklists.parquet", "README.md"}
    (tmp_path / "README.md").write_text("hf_" + "a" * 34)
    with pytest.raises(HubError, match="what looks like a secret"):
        push_checklists(tmp_path, "lists")


# What a trainer makes of it


class Contains:
    """A judge: consistent is what the answer holds as it is."""

    def judge(self, inputs):
        return [Judgement(S if item.claim in item.evidence[0] else U) for item in inputs]


def test_a_trainer_reads_the_dataset(tmp_path, tiny_model):
    build(tmp_path / "run", "ks es", "ks", rows=ROWS)
    dataset = datasets.load_dataset(str(tmp_path / "run"), split="train", cache_dir=str(tmp_path / "cache"))
    lists = ChecklistReward(Contains())
    seen = []

    def recall(completions, completion_texts, checklist, **columns):
        seen.extend(zip(completion_texts, checklist, strict=True))
        return lists.recall(completions, completion_texts=completion_texts, checklist=checklist, **columns)

    args = FactGRPOConfig(
        str(tmp_path / "out"), per_device_train_batch_size=4, num_generations=4, max_completion_length=16, max_steps=2,
        learning_rate=1e-2, report_to="none", logging_steps=1, verify_scope="completion", use_cpu=True, save_strategy="no",
    )  # fmt: skip
    trainer = FactGRPOTrainer(tiny_model, [recall, lists.precision], args, dataset, verifier=Letters2())
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    logged = [entry["rewards/recall/mean"] for entry in trainer.state.log_history if "loss" in entry]
    # The tiny model writes any token, also the one that begins its reasoning.
    answers = [(text.partition("<think>")[0], items) for text, items in seen]
    by_hand = [sum(item in text for item in items) / len(items) for text, items in answers]
    assert logged == pytest.approx([sum(by_hand[i : i + 4]) / 4 for i in (0, 4)])
    assert {tuple(items) for _, items in seen} == {("k", "e")} and len(set(by_hand)) > 1
    assert any((before[name] != value).any() for name, value in trainer.model.named_parameters())


class Letters2:
    requires_evidence = False

    def verify(self, inputs):
        return [Verification((LabeledSpan(0, len(item.completion), N),)) for item in inputs]


def test_atomic_claims_of_a_pipeline_on_a_server(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))

    def reply(prompt, body):
        if prompt.startswith("Split"):
            name = next(name for name in PEOPLE if f"{name} was" in prompt or f"{name} died" in prompt)
            sentence = prompt.rpartition(f"{name} ")[2].partition(".")[0]
            return f"- {name} {sentence}.\n- {name} was a person."
        claim = next(line for line in reversed(prompt.splitlines()) if re.search(r"(was|died) .*\.$", line))
        return "contradicted" if "Bath" in claim or "died in Leeds" in claim else "supported"

    with FakeServer(reply) as server:
        client = server.client()
        VerifierPipeline(FActScoreExtractor(client), LLMJudge(client)).save_pretrained(tmp_path / "pipe")
        flags = ["--verifier", f"pipeline:{tmp_path / 'pipe'}", "--verifier_base_url", server.url]
        given = [questions(tmp_path, PEOPLE[:2]), "--responses", responses(tmp_path, PEOPLE[:2])]
        assert command(*given, *flags, "--out", tmp_path / "run") == 0
    dataset = datasets.Dataset.from_parquet(str(tmp_path / "run" / "checklists.parquet"))
    assert dataset["checklist"] == [
        [f"{n} was a person.", f"{n} was born in Leeds.", f"{n} died in York."] for n in PEOPLE[:2]
    ]
    assert dataset["counts"] == [[3, 2, 1]] * 2
