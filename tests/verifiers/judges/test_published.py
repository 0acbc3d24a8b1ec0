"""Published judges on tiny models of their architecture: templates as they were released, scores by a slow way."""

import functools
import math

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    BertForSequenceClassification,
)

from hf_factuality.generation.base import ChatAnswer, TokenLogprobs
from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, NLIJudge, VerifierInput, load_verifier
from hf_factuality.verifiers.int8 import Int8Linear
from hf_factuality.verifiers.judges.factcg import FactCGJudge, factcg_chunks
from hf_factuality.verifiers.judges.lettucedetect import (
    LettuceDetectVerifier,
    lettucedetect_prompt,
    unsupported_spans,
)
from hf_factuality.verifiers.judges.minicheck import MiniCheckJudge, MiniCheckVerifier, ServedMiniCheckJudge
from hf_factuality.verifiers.judges.veriscorefast import VeriScoreFastExtractor, VeriScoreFastJudge, parse_verdicts
from hf_factuality.verifiers.pipeline import VerifierPipeline
from tests.tiny import save_tiny_model
from tests.verifiers.judges.test_nli import CLAIM, oracle, save_model
from tests.verifiers.published import (
    CLAIMS,
    DOCUMENTS,
    PAIRS,
    TEXTS,
    save_deberta,
    save_modernbert,
    save_roberta,
)


FACTCG_TEXT = (
    'D.\n\nChoose your answer: based on the paragraph above can we conclude that "C."?\n\nOPTIONS:\n- Yes\n- No\n'
    "I think the answer is "
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    path = tmp_path_factory.mktemp("published")
    made = {"deberta": save_deberta, "roberta": save_roberta, "modernbert": save_modernbert}
    return {name: make(path / name) for name, make in made.items()}


@functools.cache
def loaded(folder, kind):
    return AutoTokenizer.from_pretrained(folder), kind.from_pretrained(folder).eval()


def supported(folder, text):
    """P(class 1) of one text by itself, softmax by hand."""
    tokenizer, model = loaded(folder, AutoModelForSequenceClassification)
    with torch.no_grad():
        zero, one = model(**tokenizer(text, return_tensors="pt")).logits[0].double().tolist()
    return math.exp(one) / (math.exp(zero) + math.exp(one))


def best(folder, template, chunks, claim):
    return max(supported(folder, template.replace("D.", chunk).replace("C.", claim)) for chunk in chunks)


# -- FactCG and MiniCheck's classifiers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "judge", "template", "last_chunks"),
    [
        # Chunks of the last document, as the released code makes them: 550 words and marks, 400 tokens.
        ("deberta", FactCGJudge, FACTCG_TEXT, 2),
        ("roberta", MiniCheckJudge, "D.</s>C.", 4),
        ("deberta", MiniCheckJudge, "D.[SEP]C.", 5),
    ],
)
def test_ten_pairs(folders, kind, judge, template, last_chunks):
    made = judge(folders[kind], device="cpu", dtype="float32")
    inputs = [JudgeInput(claim, (document,)) for document, claim in PAIRS]
    windows = made._windows(inputs)
    assert list(map(len, windows)) == [1] * 8 + [last_chunks] * 2
    results = made.judge(inputs)
    expected = [best(folders[kind], template, own, item.claim) for own, item in zip(windows, inputs, strict=True)]
    assert [result.score for result in results] == pytest.approx(expected, abs=1e-5)
    assert max(expected) - min(expected) > 0.01  # the control: inputs do matter
    assert [result.label is Label.SUPPORTED for result in results] == [value >= 0.5 for value in expected]


def test_what_factcg_counts():
    """Words and marks as nltk's tokenizer counts them: contractions are two, numbers and hyphened words one."""
    assert [len(factcg_chunks(DOCUMENTS[1], size)) for size in (1, 100)] == [1, 1]
    text = "She didn't go. It's 1,900. An x-ray!"  # 5, 4 and 3
    assert factcg_chunks(text, 9) == ["She didn't go. It's 1,900.", "An x-ray!"]
    assert factcg_chunks(text, 8) == ["She didn't go.", "It's 1,900. An x-ray!"]
    with pytest.raises(ValueError, match="chunk_size must be at least 1, got 0"):
        FactCGJudge("nowhere", chunk_size=0)


def test_positions_limit_roberta_alone(folders):
    """514 positions are 512 tokens, as RoBERTa begins at 2; DeBERTa counts from token to token."""
    assert MiniCheckJudge(folders["roberta"]).max_length == 512
    assert MiniCheckJudge(folders["deberta"]).max_length == FactCGJudge(folders["deberta"]).max_length == 2048
    judge = MiniCheckJudge(folders["roberta"], chunk_tokens=2000)
    windows = judge._windows([JudgeInput(CLAIMS[0], (DOCUMENTS[4],))])[0]
    assert len(windows) > 1
    assert all(len(ids) <= 512 for ids in judge._encode([(window, CLAIMS[0]) for window in windows])["input_ids"])


def test_a_pipeline_of_it_is_saved_and_is_the_same(folders, tmp_path):
    item = VerifierInput("The tower is high.", None, (DOCUMENTS[4],))
    for name, chosen in (("factcg", {"chunk_size": 50}), ("minicheck", {"chunk_tokens": 90})):
        verifier = load_verifier(f"{name}:{folders['deberta']}", **chosen)
        verifier.save_pretrained(tmp_path / name)
        again = load_verifier(f"pipeline:{tmp_path / name}")
        assert type(again.judge) is type(verifier.judge) and again.judge.config() == verifier.judge.config()
        assert again.verify([item]) == verifier.verify([item])


@pytest.mark.slow
def test_int8_on_the_cpu(folders):
    inputs = [JudgeInput(claim, (document,)) for document, claim in PAIRS]
    small = FactCGJudge(folders["deberta"], dtype="int8")
    assert any(isinstance(module, Int8Linear) for module in small.model.modules())
    assert small.config()["dtype"] == "int8"
    whole = [result.score for result in FactCGJudge(folders["deberta"], device="cpu").judge(inputs)]
    scores = [result.score for result in small.judge(inputs)]
    assert scores == pytest.approx(whole, abs=0.1) and scores != whole
    with pytest.raises(ValueError, match="int8.*is for CPUs, got device='cuda'"):
        FactCGJudge(folders["deberta"], dtype="int8", device="cuda")


@pytest.mark.parametrize(
    ("capability", "asked", "expected"),
    [(8, None, torch.bfloat16), (9, "float32", torch.float32), (7, None, None)],
)
def test_bfloat16_on_gpus_that_have_it(folders, monkeypatch, capability, asked, expected):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (capability, 0))
    judge = FactCGJudge(folders["deberta"])
    judge.model, judge.device, judge.dtype = "a/b", "cuda", asked
    assert judge._loading_dtype() == expected
    judge.device = "cpu"
    assert judge._loading_dtype() == (torch.float32 if asked else None)


# -- Bespoke-MiniCheck-7B ----------------------------------------------------------------------------------------------


class Scripted:
    """A model that says what a function says."""

    model, revision = "scripted", None

    def __init__(self, say):
        self.say, self.asked = say, []

    def chat(self, requests):
        self.asked += requests
        return [self.say(request.messages[-1][1]) for request in requests]


def answer(text, **probabilities):
    candidates = tuple((token, math.log(share)) for token, share in probabilities.items())
    return ChatAnswer(text, "stop", (TokenLogprobs(text, candidates),) if candidates else None)


def test_bespoke_minicheck():
    client = Scripted(lambda turn: answer("Yes", Yes=0.9, No=0.05) if "Leeds" in turn else answer("Perhaps"))
    judge = ServedMiniCheckJudge(client)
    inputs = [JudgeInput("C.", (text,)) for text in ("In Leeds {{claim}}.", "In Ulm.", " ")]
    found = judge.judge(inputs)
    assert [it.label for it in found] == [Label.SUPPORTED, None, Label.UNVERIFIABLE]
    assert found[0].score == pytest.approx(0.9 / 0.95) and judge.last_report.unparsed == 1
    (role, system), turn = client.asked[0].messages
    assert role == "system" and system.startswith("Determine whether the provided claim is consistent with the ")
    assert system.endswith('responding with either "Yes" or "No".') and len(client.asked) == 2
    assert turn == ("user", "Document: In Leeds {{claim}}.\nClaim: C.")
    # The largest over the chunks decides; without log-probabilities the answer alone does.
    client = Scripted(lambda turn: answer("Yes" if "Leeds" in turn else "No"))
    judge = ServedMiniCheckJudge(client, chunk_words=3, negative_label="contradicted")
    found = judge.judge([JudgeInput("C.", ("It is Ulm. It is Leeds.",)), JudgeInput("C.", ("It is Ulm.",))])
    assert [(it.label, it.score) for it in found] == [(Label.SUPPORTED, None), (Label.CONTRADICTED, None)]
    assert found[0].evidence == "It is Leeds."


def test_minicheck_takes_a_chat_model_of_this_process(tmp_path):
    """The choice is by the configuration of the model."""
    verifier = load_verifier(f"minicheck:{save_tiny_model(tmp_path)}", device="cpu", threshold=0.0)
    item = VerifierInput("Marie was born in Warsaw.", None, ("Marie Curie was born in Warsaw.",))
    (span,) = verifier.verify([item])[0].spans
    assert isinstance(verifier.judge, ServedMiniCheckJudge) and verifier.judge.client.tokenizer is not None
    assert span.label is Label.SUPPORTED and 0 < span.score < 1


def test_an_address_is_used_only_where_it_is_given(folders, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_BASE_URL", "http://127.0.0.1:9/v1")
    assert isinstance(load_verifier(f"minicheck:{folders['roberta']}").judge, MiniCheckJudge)
    served = MiniCheckVerifier("a/b", base_url="http://127.0.0.1:9/v1").judge
    assert served.client.model == "a/b" and isinstance(served, ServedMiniCheckJudge)


# -- LettuceDetect -----------------------------------------------------------------------------------------------------


def test_lettucedetect_prompts():
    assert lettucedetect_prompt(["A.", "B."], "Where ${context}?") == (
        "Briefly answer the following question:\nWhere ${context}?\nBear in mind that your response should be strictly "
        "based on the following 2 passages:\npassage 1: A.\npassage 2: B.\nIn case the passages do not contain the "
        'necessary information to answer the question, please reply with: "Unable to answer based on given passages."\n'
        "output:"
    )
    assert lettucedetect_prompt(["A."], None, "zh") == "请总结以下文本：\n段落 1: A.\n输出：\n"


def slow_tokens(folder, passages, question, text):
    """Characters and P(class 1) of each token of the answer, of one pair by itself, softmax by hand."""
    tokenizer, model = loaded(folder, AutoModelForTokenClassification)
    encoded = tokenizer(
        lettucedetect_prompt(passages, question), text, return_tensors="pt", return_offsets_mapping=True
    )
    offsets = encoded.pop("offset_mapping")[0].tolist()
    count = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    with torch.no_grad():
        logits = model(**encoded).logits[0].double().tolist()
    return [
        (*offsets[place], math.exp(logits[place][1]) / sum(map(math.exp, logits[place])))
        for place in range(len(offsets) - 1 - count, len(offsets) - 1)
    ]


ANSWERS = ["The tower is in Leeds. Where is it?", "Yes", "Nobody left.\n\nThe élan 玛丽 of 1,900 people. Ada left."]


def test_lettucedetect_spans(folders):
    verifier, sizes = LettuceDetectVerifier(folders["modernbert"], device="cpu", batch_size=2), []
    for question in ("Where?", None):
        inputs = [VerifierInput(text, question, tuple(TEXTS[:2])) for text in ANSWERS]
        for item, found in zip(inputs, verifier.verify(inputs), strict=True):
            tokens = slow_tokens(folders["modernbert"], TEXTS[:2], question, item.completion)
            wrong = {place for start, end, share in tokens if share > 0.5 for place in range(start, end)}
            marked = {
                p for span in found.spans if span.label is Label.UNVERIFIABLE for p in range(span.start, span.end)
            }
            blank = {place for place, character in enumerate(item.completion) if character.isspace()}
            assert marked - blank == wrong - blank
            sizes.append((len(wrong), len(item.completion)))
            for span in found.spans:
                own = [share for start, end, share in tokens if start < span.end and span.start < end]
                if span.label is not Label.NO_FACT:
                    assert span.score == pytest.approx(1 - max(own), abs=1e-5)
                if span.label is not Label.UNVERIFIABLE:
                    assert max(own) <= 0.5
            assert found.validate(item.completion)
    assert any(wrong for wrong, _ in sizes) and all(wrong < whole for wrong, whole in sizes)


def test_lettucedetect_reads_passages_in_groups(folders):
    """Of what two prompts say of a token, the less favourable counts; a text that leaves no room is unknown."""
    text = ANSWERS[0]
    verifier = LettuceDetectVerifier(folders["modernbert"], device="cpu")
    verifier.judge.max_length = 240
    groups = verifier.judge._prompts(text, "Where?", TEXTS)
    assert len(groups) == 2
    parts = [TEXTS[:split] for split in range(1, 4) if lettucedetect_prompt(TEXTS[:split], "Where?") == groups[0]]
    (first,) = parts
    slow = [slow_tokens(folders["modernbert"], part, "Where?", text) for part in (first, TEXTS[len(first) :])]
    found = verifier.judge.tokens([(text, "Where?", TEXTS)])[0]
    worst = [1 - max(a, b) for (_, _, a), (_, _, b) in zip(*slow, strict=True)]
    assert [share for _, _, share in found] == pytest.approx(worst, abs=1e-5)
    # A passage that is too long by itself is cut, and nothing of it is lost.
    judge = verifier.judge
    prompts = judge._prompts(text, "Where?", [DOCUMENTS[4]])
    shown = "".join(part.split("\nIn case the passages")[0].split("\npassage 1: ")[1] for part in prompts)
    shown = "".join(line.split(": ", 1)[-1] for line in shown.split("\n"))
    assert len(prompts) > 3 and "".join(shown.split()) == "".join(DOCUMENTS[4].split())
    assert all(len(judge.tokenizer(prompt, text)["input_ids"]) <= 240 for prompt in prompts)
    judge.max_length = 60
    (span,) = verifier.verify([VerifierInput(text * 5, "Where?", tuple(TEXTS))])[0].spans
    assert (span.start, span.end, span.label) == (0, len(text * 5), None)


def test_runs_of_tokens():
    tokens = [(0, 2, 0.9), (2, 5, 0.2), (5, 8, 0.1), (8, 9, 0.5), (9, 11, 0.4)]
    assert unsupported_spans("ab cd ef, g", tokens) == [(3, 8, 0.1), (10, 11, 0.4)]
    assert unsupported_spans("ab cd ef, g", tokens, threshold=0.05) == []


def test_lettucedetect_judges_claims_of_other_pipelines(folders):
    item = VerifierInput("The tower is in Leeds [1]. Ada left [2].", None, tuple(TEXTS[:2]))
    spans = load_verifier(f"citations:lettucedetect:{folders['modernbert']}").verify([item])[0].spans
    expected = [
        1 - max(share for _, _, share in slow_tokens(folders["modernbert"], [passage], None, claim))
        for passage, claim in zip(TEXTS, ("The tower is in Leeds.", "Ada left."), strict=False)
    ]
    assert [span.score for span in spans] == pytest.approx(expected, abs=1e-5)


# -- VeriFastScore -----------------------------------------------------------------------------------------------------


def test_verdicts_are_read_and_never_guessed():
    text = "### Facts\nParis: the city is in France: Supported\nFrance is in Asia: Unsupported\n"
    assert parse_verdicts(text) == [
        ("Paris: the city is in France", Label.SUPPORTED), ("France is in Asia", Label.UNVERIFIABLE),
    ]  # fmt: skip
    assert parse_verdicts("### Facts\nNo verifiable claim.") == parse_verdicts("No verifiable claim") == []
    assert parse_verdicts("A: Supported\nB: supported\nC") == [
        ("A", Label.SUPPORTED),
        ("B: supported", None),
        ("C", None),
    ]
    for unreadable in ("", "### Facts", "A is supported.", ": Supported", "A: Supported by B"):
        assert parse_verdicts(unreadable) is None


def test_claims_and_verdicts_in_one_pass(caplog):
    said = {
        "Paris is": "### Facts\nThe Eiffel Tower is in Paris: Supported\nParis is in Asia: Unsupported\nIt is: unclear",
        "Ulm is": "I cannot tell.",
        "Rome is": "Rome is old: Supported\nrome is old.: Unsupported",
    }
    client = Scripted(lambda turn: answer(next(text for start, text in said.items() if f"\n{start}" in turn)))
    verifier = VerifierPipeline(VeriScoreFastExtractor(client, retries=1), VeriScoreFastJudge())
    completions = ["Paris is in Asia. The Eiffel Tower is in it.", "Ulm is old. It is high.", "Rome is old."]
    inputs = [VerifierInput(text, None, ("E1 [1].", " ", "E2.")) for text in completions]
    found = verifier.verify(inputs)
    shown = [
        [(span.text(item.completion), span.claim, span.label) for span in it.spans]
        for item, it in zip(inputs, found, strict=True)
    ]
    assert shown[0] == [
        (completions[0], "It is: unclear", None),
        ("Paris is in Asia", "Paris is in Asia", Label.UNVERIFIABLE),
        ("Eiffel Tower", "The Eiffel Tower is in Paris", Label.SUPPORTED),
    ]
    # No verdict at all: asked again, then every sentence is unknown. Two verdicts on one claim are none.
    assert [(text, label) for text, _, label in shown[1]] == [("Ulm is old.", None), ("It is high.", None)]
    assert [(claim, label) for _, claim, label in shown[2]] == [("Rome is old", None)]
    assert len(client.asked) == 4 and verifier.extractor.unread_lines == 1
    assert "1 lines have neither verdict and no label; the first: 'It is: unclear'" in caplog.text
    report = verifier.extractor.last_report
    assert (report.units, report.unparsed, report.repeated) == (3, 1, 1)
    (_, system), (_, turn) = client.asked[0].messages
    assert system.startswith(
        "You are trying to verify how factual a response is by extracting fine-grained, verifiable"
    )
    assert system.endswith('If no verifiable claim can be extracted, simply output "No verifiable claim."')
    assert turn == f"### Response\n{completions[0]}\n### Evidence\nE1.\n\nE2."


# -- NLI models whose classes have no names -----------------------------------------------------------------------------


def test_labels_in_their_order(tmp_path):
    folder = save_model(tmp_path / "three", {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    inputs = [JudgeInput(CLAIM, ("a mat",))]
    shares = oracle(folder, "a mat", CLAIM)
    ordered = NLIJudge(folder, labels=("contradiction", "neutral", "entailment"))
    assert ordered.roles == ["contradicted", "unverifiable", "supported"]
    assert ordered.judge(inputs)[0].score == pytest.approx(shares[2], abs=1e-5)
    one = NLIJudge(folder, entailment=1, negative_label="contradicted", threshold=1.0)
    assert (one.judge(inputs)[0].score, one.judge(inputs)[0].label) == (
        pytest.approx(shares[1], abs=1e-5),
        Label.CONTRADICTED,
    )
    assert NLIJudge(**one.config()).roles == one.roles == ["not_supported", "supported", "not_supported"]
    assert BertForSequenceClassification.from_pretrained(folder).config.id2label[0] == "LABEL_0"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"the model '.*three': class 0 is called 'LABEL_0'.*labels=\(\"contradiction\", .*or entailment=2"),
        ({"labels": ("entailment", "neutral")}, "labels must name 3 classes in their order"),
        ({"labels": "entailment"}, "labels must name 3 classes"),
        ({"entailment": 3}, "one of 3 classes, 0 to 2, got 3"),
        ({"entailment": 0, "labels": ("a", "b", "c")}, "in several ways, labels, entailment; keep one"),
    ],
)
def test_labels_that_say_nothing(tmp_path, given, message):
    folder = save_model(tmp_path / "three", {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    with pytest.raises(ValueError, match=message):
        NLIJudge(folder, **given)
