"""Building of preference pairs: the whole way, continued, and with servers that are down for a while."""

import json
import random
import time
from types import SimpleNamespace

import pytest

from hf_factuality.data.preferences import load_pairs, pair_features, preferences_from, push_pairs
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.errors import DataError, HubError, JudgingError
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.spans import Label, LabeledSpan, Verification


LETTERS = {"s": Label.SUPPORTED, "c": Label.CONTRADICTED, "n": Label.NO_FACT}
QUESTIONS = [{"id": f"q{i}", "question": f"Question {i}?", "topic": f"t{i % 3}"} for i in range(12)]


class LetterSampler:
    """Each response is a few letters; a letter is a sentence, and says itself whether it is true."""

    def __init__(self, num_samples=4):
        self.num_samples = num_samples
        self.calls = []

    def describe(self):
        return {"model": "letters", "num_samples": self.num_samples}

    def sample(self, prompts, seed):
        rng = random.Random(seed)
        self.calls.append([prompt[-1]["content"] for prompt in prompts])
        return [
            [ChatAnswer("".join(rng.choices("scn", k=rng.randint(1, 5))), "stop" if rng.random() < 0.9 else "length") for _ in range(self.num_samples)]
            for _ in prompts
        ]  # fmt: skip


class LetterVerifier:
    requires_evidence = False

    def __init__(self, fail=()):
        self.fail = list(fail)  # exceptions to raise, call by call; None lets one through
        self.seen = []

    def verify(self, inputs):
        error = self.fail.pop(0) if self.fail else None
        if error:
            raise error
        self.seen += [item.completion for item in inputs]
        return [
            Verification(tuple(LabeledSpan(i, i + 1, LETTERS[letter]) for i, letter in enumerate(item.completion)))
            for item in inputs
        ]


def build(folder, rows=QUESTIONS, sampler=None, verifier=None, **settings):
    sampler, verifier = sampler or LetterSampler(), verifier or LetterVerifier()
    return preferences_from(read_questions(rows), sampler, verifier, folder, progress=False, **settings)


def test_the_pairs_are_best_against_worst(tmp_path):
    dataset = build(tmp_path)
    assert dataset.features == pair_features()
    lines = [json.loads(line) for line in (tmp_path / "responses.jsonl").read_text().splitlines()]
    expected = {}
    for line in lines:  # by hand: share of letters other than c
        shares = [(sum(x != "c" for x in text) / len(text), -i, text) for i, (text, _) in enumerate(line["items"])]
        expected[line["id"]] = (max(shares), min(shares))
    for row in dataset:
        best, worst = expected[row["id"]]
        assert (row["chosen"][0]["content"], row["chosen_score"]) == (best[2], pytest.approx(best[0]))
        assert (row["rejected"][0]["content"], row["rejected_score"]) == (worst[2], pytest.approx(worst[0]))
        assert [span["label"] for span in row["chosen_spans"]] == [LETTERS[x].value for x in best[2]]
        assert row["prompt"] == [{"role": "user", "content": f"Question {row['id'][1:]}?"}]
        assert "c" in row["rejected"][0]["content"] and set(row["chosen"][0]["content"]) != {"c"}
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["pairs"] == len(dataset) >= 6
    assert report["questions"] == 12 and report["responses"] == 48
    assert report["pairs"] + sum(report["dropped"].values()) == 12
    assert report["cut_off_responses"] == sum(not finished for line in lines for _, finished in line["items"])
    again = load_pairs(tmp_path)
    assert again.to_list() == dataset.to_list()
    settings = json.loads((tmp_path / "settings.json").read_text())
    described = f"pairs of sampled responses, labelled by {settings['verifier']['class']}"
    assert again.info.description.startswith(described)
    (tmp_path / "settings.json").write_text("[")
    assert load_pairs(tmp_path).info.description == "pairs of sampled responses"


def test_the_responses_of_a_batch_are_verified_in_one_call(tmp_path):
    class Counting(LetterVerifier):
        def verify(self, inputs):
            calls.append(len(inputs))
            return super().verify(inputs)

    calls = []
    build(tmp_path, sampler=LetterSampler(32), verifier=Counting(), questions_per_batch=8)
    assert calls == [8 * 32, 4 * 32]


def test_card_and_loading_by_datasets(tmp_path):
    import datasets
    from huggingface_hub import DatasetCard

    dataset = build(tmp_path / "run")
    card = DatasetCard.load(tmp_path / "run" / "README.md")
    assert card.data.configs == [{"config_name": "default", "data_files": "pairs.parquet"}]
    assert "| sampling num_samples | 4 |" in card.text and "| verifier class | LetterVerifier |" in card.text
    assert str(tmp_path) not in str(card)
    loaded = datasets.load_dataset(str(tmp_path / "run"), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.to_list() == dataset.to_list()


def test_a_card_shows_no_folder_of_a_server_and_no_token(tmp_path):
    """A served model may be named by a folder of another machine."""

    class Sampler(LetterSampler):
        def describe(self):
            return {"model": "a\n# b|c", "other": "D:\\models\\y"}

    verifier = LetterVerifier()
    verifier.judge = SimpleNamespace(model="/srv/secret/judge", top_k=3)
    build(tmp_path, sampler=Sampler(), verifier=verifier)
    card = (tmp_path / "README.md").read_text()
    assert "| verifier judge model | judge |" in card and "secret" not in card and "| sampling other | y |" in card
    assert "| sampling model | a \\# b\\|c |" in card
    described = "labelled by LetterVerifier (SimpleNamespace(model='judge', top_k=3))"
    assert load_pairs(tmp_path).info.description.endswith(described)
    (tmp_path / "README.md").write_text("hf_" + "a" * 34)
    with pytest.raises(HubError, match="README.md, line 1"):
        push_pairs(tmp_path, "someone/pairs")


def test_a_second_run_samples_and_verifies_nothing(tmp_path):
    first = build(tmp_path, questions_per_batch=5)
    sampler, verifier = LetterSampler(), LetterVerifier()
    assert build(tmp_path, sampler=sampler, verifier=verifier, questions_per_batch=5).to_list() == first.to_list()
    assert sampler.calls == [] and verifier.seen == []


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_torn_line_is_done_again(tmp_path, cut):
    whole = build(tmp_path / "a", questions_per_batch=3).to_list()
    build(tmp_path / "b", questions_per_batch=3)
    for name in ("responses.jsonl", "verifications.jsonl"):
        path = tmp_path / "b" / name
        path.write_bytes(path.read_bytes()[:-cut])
    assert build(tmp_path / "b", questions_per_batch=3).to_list() == whole


def test_other_settings_are_refused_by_name(tmp_path):
    build(tmp_path)
    with pytest.raises(DataError, match="seed was 0, now 1"):
        build(tmp_path, seed=1)
    with pytest.raises(DataError, match="sampling was .*4.*, now .*6"):
        build(tmp_path, sampler=LetterSampler(6))
    with pytest.raises(DataError, match="questions was"):
        build(tmp_path, QUESTIONS[:3])
    assert len(build(tmp_path)) > 0


def test_a_verifier_that_is_down_for_a_while_delays_and_loses_nothing(tmp_path, monkeypatch):
    naps = []
    monkeypatch.setattr(time, "sleep", naps.append)
    expected = build(tmp_path / "a").to_list()
    down = [None, JudgingError("no server"), ConnectionError("refused"), JudgingError("no server")]
    verifier = LetterVerifier(down)
    assert build(tmp_path / "b", verifier=verifier).to_list() == expected
    assert naps == [2.0, 4.0, 8.0]
    assert len(verifier.seen) == 48


def test_a_verifier_that_is_gone_ends_the_run_and_keeps_what_is_done(tmp_path):
    gone = LetterVerifier([None, None, *[JudgingError("no server at http://x")] * 50])
    with pytest.raises(JudgingError, match="no server.*start the run again"):
        build(tmp_path, verifier=gone, patience=0.0)
    assert not (tmp_path / "pairs.parquet").exists()
    with pytest.raises(DataError, match="start it again to finish it"):
        load_pairs(tmp_path)
    later = LetterVerifier()
    dataset = build(tmp_path, verifier=later)
    assert len(later.seen) == 40  # of 48: two questions of four were done
    assert dataset.to_list() == build(tmp_path / "other").to_list()


def test_one_bad_response_costs_only_itself_and_is_tried_again(tmp_path):
    class Picky(LetterVerifier):
        patient = False

        def verify(self, inputs):
            if not self.patient and any(item.completion == "bad" for item in inputs):
                raise RuntimeError("no")
            return super().verify([item for item in inputs if item.completion != "bad"]) + [
                Verification((LabeledSpan(0, 3, Label.CONTRADICTED),)) for item in inputs if item.completion == "bad"
            ]

    class Sampler(LetterSampler):
        def sample(self, prompts, seed):
            return [[ChatAnswer("sc"), ChatAnswer("ss"), ChatAnswer("bad")] for _ in prompts]

    verifier = Picky()
    dataset = build(tmp_path, QUESTIONS[:2], Sampler(), verifier)
    assert {row["rejected"][0]["content"] for row in dataset} == {"sc"}
    assert json.loads((tmp_path / "report.json").read_text())["dropped"] == {"not_judged": 2}
    verifier.patient = True
    dataset = build(tmp_path, QUESTIONS[:2], Sampler(), verifier)
    assert {row["rejected"][0]["content"] for row in dataset} == {"bad"}


def test_bad_questions():
    for rows, message in [
        ([], "no rows"),
        ([{"text": "?"}], r"row 0 .* has \['text'\]"),
        ([{"question": "a", "id": 1}, {"question": "b", "id": "1"}], "ids must differ"),
        ([{"question": "a", "evidence": 3}], "evidence must be text"),
        ([{"prompt": "a", "question": 3}], "row 0 of .*must be text"),
        ([{"prompt": [{"role": "user", "content": 3}]}], "must be text"),
        ([{"prompt": [{"role": "user"}]}], "must be text"),
    ]:
        with pytest.raises(DataError, match=message):
            read_questions(rows)


def test_evidence_is_asked_for_before_anything_is_sampled(tmp_path):
    class Needy(LetterVerifier):
        requires_evidence = True

    sampler = LetterSampler()
    with pytest.raises(DataError, match="needs evidence and no question has any"):
        build(tmp_path / "a", sampler=sampler, verifier=Needy())
    assert sampler.calls == [] and not (tmp_path / "a").exists()
    rows = [{**QUESTIONS[0], "evidence": "x"}, QUESTIONS[1]]
    dataset = build(tmp_path / "b", rows, verifier=Needy())
    assert set(dataset["id"]) <= {"q0"}


def test_half_surrogates_are_written_as_question_marks(tmp_path):
    class Sampler(LetterSampler):
        def sample(self, prompts, seed):
            return [[ChatAnswer("\ud800s"), ChatAnswer("c\udfff")] for _ in prompts]

    class Verifier(LetterVerifier):
        def verify(self, inputs):
            labels = [Label.SUPPORTED if "s" in item.completion else Label.CONTRADICTED for item in inputs]
            return [Verification((LabeledSpan(0, 2, label),)) for label in labels]

    (row,) = build(tmp_path, QUESTIONS[:1], Sampler(), Verifier())
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("?s", "c?")


def test_no_pair_is_an_error_that_says_why(tmp_path):
    class Sampler(LetterSampler):
        def sample(self, prompts, seed):
            return [[ChatAnswer("ss"), ChatAnswer("ss")] for _ in prompts]

    with pytest.raises(DataError, match="pairs.parquet.* 12 "):
        build(tmp_path, sampler=Sampler())


def test_transformers_sampler(tiny_model):
    """The same seed gives the same responses, another one others; the model's mode and the random state stay."""
    import torch

    sampler = TransformersSampler(tiny_model, config=SamplingConfig(num_samples=4, max_new_tokens=5), batch_size=3)
    sampler.model.train()
    prompts = [[{"role": "user", "content": text}] for text in ("Hello", "Who was she?")]
    state = torch.get_rng_state()
    first, again, other = (sampler.sample(prompts, seed) for seed in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state()) and sampler.model.training
    assert first == again != other
    assert [len(rows) for rows in first] == [4, 4]
    assert not all(response.complete for rows in first for response in rows)
    sampler.model.generation_config.eos_token_id = list(range(len(sampler.tokenizer)))  # any token ends a response
    assert all(r.complete and len(r.text) <= 10 for rows in sampler.sample(prompts, 1) for r in rows)
    assert sampler.describe()["num_samples"] == 4 and "/" not in sampler.describe()["model"]


def test_a_pair_needs_two_responses(tmp_path):
    with pytest.raises(ValueError, match="num_samples=1: a pair needs at least 2"):
        build(tmp_path, [{"id": "a", "question": "?"}], LetterSampler(1))


def test_an_id_that_utf8_cannot_hold_is_sampled(tmp_path):
    assert len(build(tmp_path, [{"id": "\ud800", "question": "?"}], LetterSampler(32))) == 1
