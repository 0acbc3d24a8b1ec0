import functools
import logging
import math

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, Judgement, NLIJudge, NLIVerifier, VerifierInput
from hf_factuality.verifiers.judges import pairs
from hf_factuality.verifiers.judges.nli import nli_roles
from tests.tables import cases
from tests.tiny import save_tiny_model


WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the a is was born in on mat cat dog sat he she . , 1879 ulm red blue ##s".split()
)
THREE_WAY = {0: "ENTAILMENT", 1: "neutral", 2: "Contradiction"}
CLAIM = "the cat sat."
LONG = " ".join(
    f"The {animal} sat on the {colour} mat." for animal in ("cat", "dog", "cats") for colour in ("red", "blue", "a")
)


def save_model(folder, id2label, seed=0):
    """A two-layer BERT with random weights, large enough that the outputs differ clearly between inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=64).save_pretrained(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        id2label=id2label,
        initializer_range=0.7,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def three_way(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("nli") / "three", THREE_WAY)


@pytest.fixture(scope="module")
def two_way(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("nli") / "two", {0: "consistent", 1: "hallucinated"})


@functools.cache
def loaded(folder):
    return BertTokenizerFast.from_pretrained(folder), BertForSequenceClassification.from_pretrained(folder).eval()


def oracle(folder, premise, claim):
    """Probabilities of one pair by itself: no batch, no padding."""
    tokenizer, model = loaded(folder)
    with torch.no_grad():
        logits = model(**tokenizer(premise, claim, return_tensors="pt")).logits[0].double()
    exponentials = [math.exp(value) for value in logits.tolist()]
    return [value / sum(exponentials) for value in exponentials]


class Fixed(NLIJudge):
    """The rule alone: probabilities come from a table by premise."""

    def __init__(self, folder, table, **kwargs):
        super().__init__(folder, **kwargs)
        self.table = table

    def _probabilities(self, pairs):
        return [self.table[premise] for premise, _ in pairs]


def row(supported, contradicted):
    return {"supported": supported, "contradicted": contradicted, "unverifiable": 1 - supported - contradicted}


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_equals_single_pairs_in_any_batch(three_way, batch_size):
    premises = [
        "The cat sat on the mat.",
        "a dog",
        "He was born in Ulm in 1879, she was born in a blue mat.",
        "the mat is red.",
    ]
    claims = ["the cat sat.", "he was born in ulm.", "a dog sat on the red mat, the blue mat.", "she"]
    inputs = [JudgeInput(claim, (premise,)) for premise in premises for claim in claims]
    results = NLIJudge(three_way, batch_size=batch_size, device="cpu").judge(inputs)
    expected = [oracle(three_way, item.evidence[0], item.claim) for item in inputs]
    assert [result.score for result in results] == pytest.approx([p[0] for p in expected], abs=1e-5)
    names = [Label.SUPPORTED, Label.UNVERIFIABLE, Label.CONTRADICTED]
    for result, probabilities in zip(results, expected, strict=True):
        if max(probabilities) > 0.5:
            assert result.label is names[probabilities.index(max(probabilities))]
    assert len({result.label for result in results}) > 1
    assert max(p[0] for p in expected) - min(p[0] for p in expected) > 0.1  # the control: inputs do matter


def test_two_way(two_way):
    inputs = [
        JudgeInput(claim, (LONG[:40],)) for claim in ("the cat sat.", "he was born in ulm.", "red", "she is a dog")
    ]
    expected = [oracle(two_way, LONG[:40], item.claim)[0] for item in inputs]
    middle = sorted(expected)[1]  # so that both outcomes occur
    for negative in (Label.UNVERIFIABLE, Label.CONTRADICTED):
        results = NLIJudge(two_way, threshold=middle + 1e-4, negative_label=negative).judge(inputs)
        assert [result.score for result in results] == pytest.approx(expected, abs=1e-5)
        assert [result.label for result in results] == [
            Label.SUPPORTED if value > middle + 1e-4 else negative for value in expected
        ]


def test_rule_takes_the_maximum_over_premises(three_way):
    table = {
        "weak": row(0.3, 0.1),
        "yes": row(0.8, 0.1),
        "no": row(0.05, 0.9),
        "against": row(0.1, 0.6),
        "tie": row(0.5, 0.5),
    }
    cases = [
        (("weak",), Judgement(Label.UNVERIFIABLE, 0.3, "weak")),
        (("weak", "yes"), Judgement(Label.SUPPORTED, 0.8, "yes")),
        (("yes", "against"), Judgement(Label.SUPPORTED, 0.8, "yes")),
        (("yes", "no"), Judgement(Label.CONTRADICTED, 0.8, "no")),
        (("weak", "against"), Judgement(Label.CONTRADICTED, 0.3, "against")),
        (("tie",), Judgement(Label.SUPPORTED, 0.5, "tie")),
    ]
    judge = Fixed(three_way, table)
    assert judge.judge([JudgeInput("the cat", evidence) for evidence, _ in cases]) == [
        expected for _, expected in cases
    ]
    strict = Fixed(three_way, table, threshold=0.85, contradiction_threshold=0.95)
    assert [r.label for r in strict.judge([JudgeInput("the cat", e) for e, _ in cases])] == [Label.UNVERIFIABLE] * 6


def test_long_evidence_is_cut_into_windows_of_sentences(three_way):
    """Nine sentences of 8 tokens; the claim has 4 and the pair 3 special ones: 40 - 7 = 33 leaves room for four."""
    judge = NLIJudge(three_way, max_length=40)
    sentences = [f"{part}." for part in LONG.split(". ")]
    sentences[-1] = sentences[-1].removesuffix(".")
    found = judge._windows([JudgeInput(CLAIM, (LONG, "a dog"))])[0]
    # "cats" is two tokens (cat, ##s): the last three sentences have 9.
    assert found == [" ".join(sentences[:4]), " ".join(sentences[4:7]), " ".join(sentences[7:]), "a dog"]
    result = judge.judge([JudgeInput(CLAIM, (LONG, "a dog"))])[0]
    probabilities = {window: oracle(three_way, window, CLAIM) for window in found}
    assert result.score == pytest.approx(max(p[0] for p in probabilities.values()), abs=1e-5)
    assert result.evidence in found


@pytest.mark.parametrize("text", ["the cat " * 60, "cat,dog," * 40, LONG * 3, "- the cat.\n\n- a dog sat, \n" * 12])
def test_no_evidence_is_dropped(three_way, text):
    judge = NLIJudge(three_way, max_length=32)
    windows = judge._windows([JudgeInput(CLAIM, (text,))])[0]
    assert "".join("".join(windows).split()) == "".join(text.split())
    assert len(windows) > 1
    for window in windows:
        assert len(judge.tokenizer(window, CLAIM)["input_ids"]) <= 32


def test_no_evidence_is_a_finding(three_way):
    judge = NLIJudge(three_way)
    assert judge.judge([JudgeInput(CLAIM, ()), JudgeInput(CLAIM, (" ", ""))]) == [Judgement(Label.UNVERIFIABLE)] * 2
    assert judge.judge([]) == []


def test_a_claim_that_leaves_no_room_is_a_failure(three_way, caplog):
    judge = NLIJudge(three_way, max_length=32)
    with caplog.at_level(logging.WARNING):
        # 21 tokens of claim leave 32 - 3 - 21 = 8 for the evidence, the least that is accepted; 22 leave 7.
        results = judge.judge([JudgeInput("the " * n, ("the cat sat.",)) for n in (21, 22)])
    assert results[0].label is not None and results[0].score == pytest.approx(
        oracle(three_way, "the cat sat.", "the " * 21)[0], abs=1e-5
    )
    assert results[1] == Judgement(None)
    assert "1 of 2 claims were not judged" in caplog.text


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_output_that_is_not_finite_is_a_failure(three_way, value):
    model = BertForSequenceClassification.from_pretrained(three_way)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[WORDS.index("dog")] = value
    judge = NLIJudge(model, BertTokenizerFast.from_pretrained(three_way))
    results = judge.judge(
        [JudgeInput(CLAIM, ("a dog",)), JudgeInput(CLAIM, ("a mat",)), JudgeInput(CLAIM, ("a mat", "a dog"))]
    )
    assert results[0] == results[2] == Judgement(None)
    assert results[1].score == pytest.approx(oracle(three_way, "a mat", CLAIM)[0], abs=1e-5)


def test_loaded_model_is_used_in_eval_mode_without_gradient(three_way):
    model = BertForSequenceClassification.from_pretrained(three_way).train()
    judge = NLIJudge(model, BertTokenizerFast.from_pretrained(three_way), dtype=torch.float64)
    model.train()  # somebody else's doing; dropout would change the score
    inputs = [JudgeInput(CLAIM, ("a mat is red.",))]
    assert judge.judge(inputs) == judge.judge(inputs)
    assert judge.judge(inputs)[0].score == pytest.approx(oracle(three_way, "a mat is red.", CLAIM)[0], abs=1e-5)
    assert model.dtype == torch.float64
    assert all(parameter.grad is None for parameter in model.parameters())


def test_each_pair_runs_once(three_way):
    judge = NLIJudge(three_way, batch_size=4)
    sizes = []
    judge.model.register_forward_pre_hook(
        lambda _, args, kwargs: sizes.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    judge.judge([JudgeInput(CLAIM, ("a mat", "a dog"))] * 8 + [JudgeInput("she", ("a mat",))])
    assert sizes == [3]


def test_a_forward_pass_on_a_cpu_holds_few_tokens_and_little_padding(three_way, monkeypatch):
    """A pair has 3 special tokens, 4 of the claim and those of its premise."""
    monkeypatch.setattr(pairs, "_CPU_TOKENS", 64)
    monkeypatch.setattr(pairs, "_CPU_BUSY_TOKENS", 40)
    monkeypatch.setattr(pairs, "_CPU_WIDTH", 16)  # the model's is no smaller
    premises = ["the " * 57, "a " * 23, "cat " * 22, "dog " * 17, "mat " * 10, "he " * 9]
    premises += ["red", "blue", "ulm", "sat", "she", "he"]
    inputs = [JudgeInput(CLAIM, (premise,)) for premise in premises]
    judge, shapes = NLIJudge(three_way, device="cpu", batch_size=5), []
    judge.model.register_forward_pre_hook(
        lambda _, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    results = judge.judge(inputs)
    # 64 alone; 30 + 29 of 64; 24 + 17 of 48, more than 40 and a seventh of it padding, so 24 alone; 17 + 16 (34 are few, and
    # with one of 8 it were 51 with 10 of padding); five of 8, as batch_size says; the last.
    assert shapes == [(1, 64), (2, 30), (1, 24), (2, 17), (5, 8), (1, 8)]
    expected = [oracle(three_way, item.evidence[0], item.claim)[0] for item in inputs]
    assert [result.score for result in results] == pytest.approx(expected, abs=1e-5)


def test_verifier_end_to_end(three_way):
    verifier = NLIVerifier(three_way, batch_size=4)
    completion = "The cat sat. He was born in Ulm."
    found = verifier.verify([VerifierInput(completion, evidence=("The cat sat on the mat.",)), VerifierInput("She.")])
    assert [(span.start, span.end) for span in found[0].spans] == [(0, 12), (13, 32)]
    for span in found[0].spans:
        probability = oracle(three_way, "The cat sat on the mat.", span.text(completion))[0]
        assert span.score == pytest.approx(probability, abs=1e-5)
    assert [span.label for span in found[1].spans] == [Label.UNVERIFIABLE]


# -- classes ----------------------------------------------------------------------------------------------------------


@cases("judges", "nli_classes", "names", "roles")
def test_class_names(names, roles):
    assert nli_roles(dict(enumerate(names))) == roles


def test_label_map_gives_generic_classes_a_meaning(tmp_path):
    folder = save_model(tmp_path / "generic", {0: "LABEL_0", 1: "LABEL_1"})
    with pytest.raises(ValueError, match="'LABEL_0'.*label_map"):
        NLIJudge(folder)
    inputs = [JudgeInput(CLAIM, ("a mat",))]
    expected = oracle(folder, "a mat", CLAIM)
    by_name = NLIJudge(folder, label_map={0: "contradicted", 1: Label.SUPPORTED}).judge(inputs)[0]
    assert by_name.score == pytest.approx(expected[1], abs=1e-5)
    assert by_name.label is (Label.SUPPORTED if expected[1] > 0.5 else Label.CONTRADICTED)
    # Keys from a YAML or JSON file are strings.
    assert nli_roles({0: "LABEL_0", 1: "LABEL_1"}, {"0": "entailment", "1": "not_entailment"}) == [
        "supported",
        "not_supported",
    ]


def test_one_output_is_a_logit(tmp_path):
    folder = save_model(tmp_path / "one", {0: "LABEL_0"})
    result = NLIJudge(folder, label_map={0: "supported"}, threshold=0.0).judge([JudgeInput(CLAIM, ("a mat",))])[0]
    tokenizer, model = BertTokenizerFast.from_pretrained(folder), BertForSequenceClassification.from_pretrained(folder)
    logit = model.eval()(**tokenizer("a mat", CLAIM, return_tensors="pt")).logits.item()
    assert result == Judgement(Label.SUPPORTED, pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5), "a mat")


@cases("judges", "nli_label_maps", "label_map", "message")
def test_bad_label_maps(label_map, message):
    with pytest.raises(ValueError, match=message):
        nli_roles({0: "LABEL_0", 1: "LABEL_1"}, label_map)


@cases("judges", "nli_arguments", "arguments", "message")
def test_bad_arguments(three_way, arguments, message):
    with pytest.raises(ValueError, match=message):
        NLIJudge(three_way, **arguments)


def test_loaded_model_needs_its_tokenizer(three_way):
    model = BertForSequenceClassification.from_pretrained(three_way)
    with pytest.raises(ValueError, match="a loaded model needs its tokenizer"):
        NLIJudge(model)
    tokenizer = BertTokenizerFast.from_pretrained(three_way)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="batch_size=1"):
        NLIJudge(model, tokenizer)
    assert NLIJudge(model, tokenizer, batch_size=1).judge([JudgeInput(CLAIM, ("a mat", "a dog"))])[0].label is not None


def test_remote_code_needs_consent(three_way, monkeypatch):
    import transformers

    seen = []
    for name in ("AutoTokenizer", "AutoModelForSequenceClassification"):
        real = getattr(transformers, name).from_pretrained

        def record(*args, _real=real, **kwargs):
            seen.append((kwargs["trust_remote_code"], kwargs["revision"]))
            return _real(*args, **kwargs)

        monkeypatch.setattr(getattr(transformers, name), "from_pretrained", record)
    NLIJudge(three_way)
    NLIJudge(three_way, trust_remote_code=True, revision="abc")
    assert seen == [(False, None)] * 2 + [(True, "abc")] * 2


def test_a_judge_is_loaded_whole_under_zero3(three_way, monkeypatch):
    """ZeRO-3 is on from the moment the training arguments exist; the policy still has to be split afterwards."""
    from transformers import AutoModelForSequenceClassification
    from transformers.integrations import deepspeed

    class Zero3:
        def is_zero3(self):
            return True

    config, seen = Zero3(), []
    load = AutoModelForSequenceClassification.from_pretrained

    def spy(*args, **kwargs):
        seen.append(deepspeed.is_deepspeed_zero3_enabled())
        return load(*args, **kwargs)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", spy)
    deepspeed.set_hf_deepspeed_config(config)
    try:
        NLIJudge(str(three_way))
        assert seen == [False]
        assert deepspeed.is_deepspeed_zero3_enabled()
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_short_texts_are_not_measured(three_way, monkeypatch):
    """Only what might not fit is encoded to be counted, and the windows are the same as if all were."""
    judge = NLIJudge(three_way, device="cpu", max_length=64)
    inputs = [
        JudgeInput(CLAIM, ("the cat", "a dog")),
        JudgeInput(CLAIM, ("the cat sat. " * 40,)),
        JudgeInput("né", ("le chat",)),
    ]
    counted = []
    count = judge._count
    monkeypatch.setattr(judge, "_count", lambda texts: counted.extend(texts) or count(texts))
    windows = judge._windows(inputs)
    assert "a dog" not in counted and {"né", "le chat", "the cat sat. " * 40} <= set(counted)
    monkeypatch.setattr(judge, "_surely_fits", lambda item, special: False)
    assert judge._windows(inputs) == windows


def test_padding_is_the_tokenizers(three_way):
    judge = NLIJudge(three_way, device="cpu")
    encoded = judge._encode([("the cat", "a"), ("the cat sat on the mat", "a dog"), ("he", "she")])
    for side in ("right", "left"):
        judge.tokenizer.padding_side = side
        padded = judge._padded(encoded, range(3))
        for name, expected in judge.tokenizer.pad(encoded, return_tensors="pt").items():
            assert padded[name].equal(expected)


def save_decoder(folder):
    """A Llama that classifies, without the padding token in its config, as those of some releases."""
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(folder))
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=128, pad_token_id=None, id2label={0: "not_supported", 1: "supported"},
    )  # fmt: skip
    model = LlamaForSequenceClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder), tokenizer, model.eval()


def test_a_decoder_reads_where_the_claim_begins(tmp_path):
    folder, tokenizer, model = save_decoder(tmp_path)
    judge = NLIJudge(folder, device="cpu")
    pairs = [
        ("He sat.", "She was born."),
        ("He sat. She", "was born."),
        ("He sat.", "She was born in a red mat, and sat."),
    ]
    ids = judge._encode(pairs)["input_ids"]
    assert tokenizer.decode(ids[0]) == "He sat.\n\nShe was born."
    found = judge.judge([JudgeInput(claim, (premise,)) for premise, claim in pairs])
    with torch.no_grad():
        alone = [model(torch.tensor([own])).logits.softmax(-1)[0, 1].item() for own in ids]
    assert [one.score for one in found] == pytest.approx(alone, abs=1e-5)  # padded to one length
    assert found[0].score != pytest.approx(found[1].score, abs=1e-4)


def test_windows_of_a_decoder_leave_room_for_what_parts_them(tmp_path):
    folder, _, _ = save_decoder(tmp_path)
    judge = NLIJudge(folder, device="cpu", max_length=32)
    item = JudgeInput(CLAIM, (LONG,))
    (premises,) = judge._windows([item])
    ids = judge._encode([(premise, CLAIM) for premise in premises])["input_ids"]
    assert len(premises) > 2 and max(map(len, ids)) <= 32
    assert [judge.tokenizer.decode(own) for own in ids] == [f"{premise}\n\n{CLAIM}" for premise in premises]
