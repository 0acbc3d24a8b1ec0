import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from hf_factuality.metrics._common import describe_component
from hf_factuality.spans import Label
from hf_factuality.verifiers import (
    JudgeInput,
    LexicalJudge,
    SmallJudge,
    SmallVerifier,
    VerifierInput,
    int8,
    load_verifier,
)
from hf_factuality.verifiers.judges.lexical.judge import WordReading, read_words
from hf_factuality.verifiers.judges.small import judge as small
from hf_factuality.verifiers.judges.small.amounts import given_once, in_words_of
from hf_factuality.verifiers.judges.small.network import (
    FOLDER,
    LONGEST,
    SUPPORTED,
    TOKENIZER,
    WEIGHTS,
    Network,
    digest,
    halves,
    load_network,
)
from tests.tables import cases


WORD_VECTORS = "embeddings.word_embeddings.weight"
DEVELOPMENT = Path(__file__).resolve().parents[2] / "cases" / "judging" / "development.jsonl"
PAIRS = [
    ("Tarn Data was bought by Corvid Systems in 1998.", "Corvid Systems acquired Tarn Data."),
    ("The shop is closed on Mondays.", "The shop is open on Mondays."),
    (
        "The mill opened in 1956. It closed in 1990, and nobody has used it since.",
        "The mill was sold for two million euros.",
    ),
]


def judged(claim, *evidence, judge=None):
    return (judge or SmallJudge()).judge([JudgeInput(claim, evidence)])[0]


@pytest.fixture(scope="module")
def pairs():
    with DEVELOPMENT.open(encoding="utf-8") as lines:
        return [(row["evidence"], row["claim"]) for row in map(json.loads, lines)][::12]


# -- the network -------------------------------------------------------------------------------------------------------


class Floats:
    """A layer of the same weights that rounds nothing of what it reads."""

    def __init__(self, weight, scale, bias):
        self.weight, self.bias = weight.float() * scale.float(), bias.float()

    def __call__(self, states):
        return torch.nn.functional.linear(states, self.weight, self.bias)


@pytest.fixture
def unrounded(monkeypatch):
    """The network whose layers round nothing of what they read."""
    load_network()  # the one that rounds is kept
    monkeypatch.setattr(int8, "Int8Linear", Floats)
    return Network(load_file(WEIGHTS), Tokenizer.from_file(str(TOKENIZER)))


def moved_by_rounding(pairs, unrounded):
    """How far rounding moves the probabilities of each pair."""
    return (torch.tensor(load_network().probabilities(pairs)) - torch.tensor(unrounded.probabilities(pairs))).abs()


@pytest.mark.slow
def test_rounding_moves_probabilities_a_little(pairs, unrounded):
    assert moved_by_rounding(pairs, unrounded).mean() < 0.01


@pytest.mark.slow
def test_rounding_moves_no_probability_far(pairs, unrounded):
    assert moved_by_rounding(pairs, unrounded).max() < 0.15


@pytest.mark.slow
def test_the_pass_is_that_of_transformers(pairs, unrounded):
    """The same weights in a `BertModel`, a pair at a time."""
    from transformers import BertConfig, BertModel

    stored = load_file(WEIGHTS)
    packed = stored[WORD_VECTORS].int()
    stored[WORD_VECTORS] = torch.stack([packed % 16 - 8, packed // 16 - 8], -1).flatten(1)
    whole = {
        name: tensor.float() * stored.get(f"{name}.scale", torch.ones(())).float()
        for name, tensor in stored.items()
        if not name.endswith(".scale")
    }
    config = BertConfig(
        hidden_size=384,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=1536,
        vocab_size=len(packed),
        max_position_embeddings=LONGEST,
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    body = {name: tensor for name, tensor in whole.items() if name.startswith(("embeddings.", "encoder."))}
    assert model.load_state_dict(body, strict=False).unexpected_keys == []
    for evidence, claim in pairs[:6]:
        [(ids, start)] = unrounded._encode([(evidence, claim)])
        types = torch.tensor([[int(place >= start) for place in range(len(ids))]])
        with torch.no_grad():
            states = model(input_ids=torch.tensor([ids]), token_type_ids=types).last_hidden_state[0]
        read = torch.cat([states[0], states[start:].mean(0), states[start:].max(0).values])
        read = torch.nn.functional.layer_norm(read, (1152,), whole["norm.weight"], whole["norm.bias"])
        expected = (whole["head.weight"] @ read + whole["head.bias"]).softmax(-1)
        assert unrounded.probabilities([(evidence, claim)])[0] == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_score_does_not_depend_on_its_batch(pairs):
    network = load_network()
    together = network.probabilities(pairs)
    assert len(together) == len(pairs) and all(sum(row) == pytest.approx(1, abs=1e-5) for row in together)
    for pair, row in list(zip(pairs, together, strict=True))[::9]:
        assert network.probabilities([pair])[0] == pytest.approx(row, abs=1e-6)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_defaults_of_a_training_do_not_matter(device, monkeypatch):
    expected = load_network().probabilities(PAIRS)
    load_network.cache_clear()
    int8.multiplies_int8.cache_clear()
    torch.set_default_device(device)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            assert load_network().probabilities(PAIRS) == expected
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        load_network.cache_clear()


def test_what_a_text_says_is_no_special_token():
    network = load_network()
    [(ids, start)] = network._encode([("a [SEP] b", "[CLS] \ud800 [MASK]")])
    first, last, mask = (network.tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]", "[MASK]"))
    assert ids.count(last) == 2 and ids.count(first) == 1 and mask not in ids and start == ids.index(last) + 1


def test_four_bits_are_unpacked():
    assert halves(torch.tensor([[0x08, 0xF0], [0x7F, 0x9A]], dtype=torch.uint8)).tolist() == [
        [0, -8, -8, 7],
        [7, -1, 2, 1],
    ]


def test_rare_words_are_read_in_pieces():
    """The network knows half of the pieces of its base; no word of Latin letters is lost."""
    network = load_network()
    [(ids, _)] = network._encode([("Ouagadougou Schistosomiasis Naïve Øresund", "Xylophonist-zygomorphic 4,517.25%")])
    assert network.tokenizer.token_to_id("[UNK]") not in ids


def test_short_evidence_is_read_as_a_whole_and_pages_by_their_closest_sentences():
    sentences = [f"The station number {number} lies in the valley of the Elm." for number in range(12)]
    claim = "The station number 7 lies in the valley."
    for count, whole in ((9, True), (12, False)):
        item = JudgeInput(claim, tuple(sentences[:count]))
        read = small.evidence_read(item, read_words(item))
        assert (read == " ".join(sentences[:count])) is whole
        assert sentences[7] in read and read.count("station") == (9 if whole else 3)


@pytest.mark.parametrize(
    ("claim", "evidence", "read"),
    [
        ("Half of the 20 metres burnt.", "50% of 20 m.", "50% of the 20 m burnt."),
        ("It cost 300 dollars.", "It cost $300.", "It cost $300."),
        ("It cost 300 dollars.", "It cost 300 euros.", "It cost 300 dollars."),
        ("It took 17 hours.", "It began at 17:00.", "It took 17 hours."),  # no time of day
        ("It has 25 rooms.", "It has at least twenty-five rooms.", "It has 25 rooms."),
        ("It has twenty-five rooms.", "It has 25 churches.", "It has 25 rooms."),  # what is counted is not looked at
        ("It is old.", "It is 20 years old.", "It is old."),
        (
            "Ada's half-brother is in the second half.",
            "Ada owns 50% of it.",
            "Ada's half-brother is in the second half.",
        ),
        ("The Third Reich fell.", "It was the 3rd time.", "The Third Reich fell."),
        ("It was at 20 °C.", "It was at 20 °F.", "It was at 20 °C."),
        ("It lasts 1 h.", "It is a 60-minute talk.", "It lasts 1 h."),
    ],
)
def test_amounts_in_the_words_of_the_evidence(claim, evidence, read):
    assert in_words_of(claim, evidence) == read


@pytest.mark.parametrize(
    ("claim", "read"),
    [
        ("It is 1,083 ft tall.", "It is 1,083 ft tall (with its spire) and 5 km (by road) away."),
        ("It is 330 m tall.", "It is 330 m tall (with its spire) and 5 km (by road) away."),
        ("It is tall.", "It is 330 m tall (with its spire) and 5 km (by road) away."),
    ],
)
def test_one_of_two_amounts_is_read(claim, read):
    evidence = "It is 330 m (1,083 ft) tall (with its spire) and 5 km (by road) away."
    assert given_once(evidence, claim) == read
    start = perf_counter()
    given_once("9" * 50_000 + "," * 50_000 + " (5 m)", claim)  # linear
    assert perf_counter() - start < 5


def test_a_claim_that_the_network_cannot_read_to_its_end_is_left_to_the_words():
    members = ", ".join(f"Bob Smith{number}" for number in range(60))
    evidence = "The members are " + ", ".join(f"Bob Smith{number}" for number in range(25)) + "."
    found, words = (judged(f"The members are {members}.", evidence, judge=it) for it in (None, LexicalJudge()))
    assert found == words and found.label is not Label.SUPPORTED


@pytest.mark.parametrize(
    ("claim", "evidence", "label"),
    [
        ("The dog slept all day.", "The novel was written by Jane Austen.", Label.UNVERIFIABLE),
        ("Corvid Systems was founded in Ulm.", "Ada Hale was born in Leeds.", Label.UNVERIFIABLE),
        ("Corvid bought Tarn Data.", "Merlin bought Tarn Data.", Label.CONTRADICTED),
        ("He was born in Paris.", "He was born in Leeds.", Label.CONTRADICTED),
    ],
)
def test_what_speaks_of_something_else_does_not_contradict(claim, evidence, label):
    assert judged(claim, evidence).label is label


@pytest.mark.slow
def test_a_fork_of_a_process_that_has_judged_judges():
    """OpenMP's threads are lost in a fork."""
    code = (
        "import multiprocessing, torch; torch.set_num_threads(2)\n"
        "from hf_factuality.verifiers.judges.small.network import load_network\n"
        "pairs = [(f'Tom sold {n} cars.', 'Tom sold cars.') for n in range(30)]\n"
        "def work(_): return load_network().probabilities(pairs)\n"
        "if __name__ == '__main__':\n"
        "    expected = work(0)\n"
        "    with multiprocessing.get_context('fork').Pool(2) as pool:\n"
        "        assert pool.map_async(work, [0, 1]).get(timeout=40) == [expected, expected]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_long_texts_are_cut():
    [(ids, start)] = load_network()._encode([("word " * 5000, "claim " * 5000)])
    assert len(ids) == LONGEST and start < LONGEST
    assert load_network().probabilities([("", "A claim."), ("word " * 5000, "A claim.")])
    assert load_network().probabilities([]) == []


def test_the_package_is_small_and_names_its_licences():
    assert sum(path.stat().st_size for path in FOLDER.iterdir() if path.is_file()) < 25_000_000
    licences = (FOLDER / "LICENSES.md").read_text(encoding="utf-8")
    assert all(
        name in licences for name in ("Apache 2.0", "MIT", "CC BY-SA 4.0", "gte-small", "SNLI", "fool-me-twice")
    )


def test_weights_are_read_at_the_first_claim_that_needs_them():
    load_network.cache_clear()
    assert judged("Let me think about this.", "The mill opened in 1956.").label is Label.NO_FACT
    assert load_network.cache_info().currsize == 0
    assert judged("The mill shut.", "The mill opened in 1956.").label is not None
    assert load_network.cache_info().currsize == 1


# -- the judge ---------------------------------------------------------------------------------------------------------


@cases("lexical", "meaning", "claim", "evidence", "label")
def test_meaning(claim, evidence, label):
    found = judged(claim, evidence)
    if label == "supported":
        assert found.label is Label.SUPPORTED
    else:
        assert found.label in (Label.UNVERIFIABLE, Label.CONTRADICTED)
    assert judged(evidence, evidence).label is Label.SUPPORTED


@pytest.mark.parametrize(
    ("claim", "evidence"),
    [
        ("Let me think about this.", ("The mill opened in 1956.",)),
        ("The mill opened in 1956.", ()),
        ("The mill opened in 1956.", ("The mill opened in 1956. It closed in 1990.",)),
        ("爱因斯坦于1879年出生于德国乌尔姆。", ("爱因斯坦于1879年3月14日出生于德国乌尔姆。",)),
        (
            "Der Turm wurde im Jahr 1889 von der Stadt nicht gebaut.",
            ("Der Turm wurde im Jahr 1889 von der Stadt gebaut und ist nicht hoch.",),
        ),
        (
            "The word for a mill in Russian is мельница.",
            ("The word for bread in Russian is хлеб, and that for a mill is short.",),
        ),
        ("The code of the mill is " + "a" * 150, ("The code of the mill and of its house is " + "b" * 150,)),
    ],
)
def test_what_the_network_does_not_read_is_judged_by_words(claim, evidence, monkeypatch):
    monkeypatch.setattr(small, "load_network", lambda: pytest.fail("the network was asked"))
    assert judged(claim, *evidence) == judged(claim, *evidence, judge=LexicalJudge())


def test_the_score_is_the_learned_layer_of_words_and_network():
    evidence, claim = PAIRS[0]
    reading = read_words(JudgeInput(claim, (evidence,)))
    assert isinstance(reading, WordReading) and reading.closest == (evidence,) and reading.sentences == 1
    assert not any(reading.features[name] for name in (*small.COSTS, "number_new", "opposite"))
    support = load_network().probabilities([(evidence, claim)])[0][SUPPORTED]
    words, net = math.log(reading.score / (1 - reading.score)), math.log(support / (1 - support))
    logit = small.JOINED_INTERCEPT + small.JOINED["words"] * words + small.JOINED["network"] * net
    assert any(reading.features[name] for name in ("order", "far", "verb", "words"))  # else `SAME_WORDS` comes on top
    unread = 1 / (1 + math.exp(5.5)) / (1 + math.exp(2.5))  # one sentence, five words
    logit = (1 - unread) * logit + unread * (words + 0.15 * net)
    assert judged(claim, evidence).score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-5)


def test_a_decade_is_no_year_of_it():
    for claim, evidence, narrowed in (
        ("The mill opened in 1984.", "The mill opened in the 1980s.", True),
        ("The mill opened in 1984.", "The mill opened in the 1980s, in 1984.", False),
        ("The mill opened in 1980.", "The mill opened in the 1980s.", True),
        ("The mill opened in 1980.", "The mill opened in the 1980's.", True),
        ("The mill opened in the 1980's.", "The mill opened in the 1980s.", False),
        ("The mill won once in the 1980s, in 1984.", "The mill won once in the 1980s, in 1983-84.", False),
        ("The mill opened in 1984.", "The mill, one of many of the 1980s, opened ten years after 1974.", False),
        ("The mill had 1984 visitors.", "In the 1980s the mill had 1,984 visitors.", False),
        ("The mill opened in the 1980s.", "The mill opened in 1984.", False),
        ("The mill opened in 1994.", "The mill opened in the 1980s.", False),
    ):
        reading = read_words(JudgeInput(claim, (evidence,)))
        assert isinstance(reading, WordReading) and small._narrowed(claim, reading) is narrowed
        assert narrowed <= (judged(claim, evidence).score < 0.3)


def test_long_claims_about_many_sentences_are_judged_by_words_and_a_part_of_the_network():
    other = "Nothing of note happened in the town in that year, nor in the one after."
    evidence = tuple(f"{other} ({number})" for number in range(60)) + (PAIRS[2][0],)
    claim = (
        "The mill, which had opened in the year 1956 by the river, closed in 1990 and was used by nobody since, although the town, "
        "whose council had paid for its wheel and for the road that led to it, had asked several times for a new tenant."
    )
    reading = read_words(JudgeInput(claim, evidence))
    assert isinstance(reading, WordReading) and reading.score == judged(claim, *evidence, judge=LexicalJudge()).score
    read = small.evidence_read(JudgeInput(claim, evidence), reading)
    support = load_network().probabilities([(read, claim)])[0][SUPPORTED]
    logit = math.log(reading.score / (1 - reading.score)) + 0.15 * math.log(support / (1 - support))
    assert judged(claim, *evidence).score == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-3)


@pytest.mark.parametrize(("support", "label"), [(0.998, Label.SUPPORTED), (0.001, Label.CONTRADICTED)])
def test_a_short_claim_beside_ten_passages_is_left_to_the_network(support, label, monkeypatch):
    class Sure:
        def probabilities(self, pairs):
            return [(support, 0.999 - support, 0.001) for _ in pairs]

    monkeypatch.setattr(small, "load_network", Sure)
    other = "Nothing of note happened in the town in that year. The harbour froze. Nobody complained about it."
    evidence = (*(f"{other} (Report {number}.)" for number in range(9)), PAIRS[0][0])
    assert judged("Corvid Systems took over Tarn Data in 1998.", *evidence).label is label


def test_pairs_are_told_apart():
    labels = [judged(claim, evidence).label for evidence, claim in PAIRS]
    assert labels[0] is Label.SUPPORTED
    assert labels[1] is Label.CONTRADICTED
    assert labels[2] in (Label.UNVERIFIABLE, Label.CONTRADICTED)


@pytest.mark.parametrize("claim", ["The man is wide awake.", "The man is awake."])
def test_asleep_is_not_awake(claim):
    assert judged(claim, "A man is asleep on a bench.").label is Label.CONTRADICTED


def test_a_number_that_follows_from_two_others_raises_the_score():
    evidence = ("The mill opened in 1956 and closed in 1990.",)
    scores = []
    for claim in ("The mill ran for 34 years.", "The mill ran for 43 years."):
        reading = read_words(JudgeInput(claim, evidence))
        assert isinstance(reading, WordReading)
        scores.append(small.joined_score(claim, reading, 0.5))
    assert scores[0] > scores[1] + 0.1


def test_differences_of_the_words_count_less_beside_longer_evidence():
    """What is said there may follow from several facts: here the number is a difference."""
    claim, short = "The mill ran for 34 years.", "The mill ran for 43 years."
    long = "The mill ran for 43 years, and not all of them were good ones, as the owner said when it closed in the spring."
    lowered = []
    for evidence in (short, long):
        reading = read_words(JudgeInput(claim, (evidence,)))
        assert reading.features["number"] == 1
        same = reading._replace(features=reading.features | {"number": 0, "number_new": 0})
        scores = [small.joined_score(claim, one, 0.5) for one in (same, reading)]
        lowered.append(math.log(scores[0] / (1 - scores[0])) - math.log(scores[1] / (1 - scores[1])))
    assert lowered[0] > lowered[1] + 1 > 1


def test_each_pair_is_run_once_and_order_is_kept(monkeypatch):
    network, asked = load_network(), []

    class Counting:
        def probabilities(self, pairs):
            asked.extend(pairs)
            return network.probabilities(pairs)

    monkeypatch.setattr(small, "load_network", Counting)
    inputs = [JudgeInput(claim, (evidence,)) for evidence, claim in (PAIRS[1], PAIRS[0], PAIRS[1])]
    found = SmallJudge().judge(inputs)
    assert len(asked) == 2 and found[0] == found[2] != found[1]


def test_verifier_by_name():
    verifier = load_verifier("small", threshold=0.3)
    assert isinstance(verifier, SmallVerifier) and verifier.judge.config() == {"threshold": 0.3}
    [found] = verifier.verify([VerifierInput("Corvid Systems acquired Tarn Data. Hello!", None, (PAIRS[0][0],), {})])
    assert [span.label for span in found.spans] == [Label.SUPPORTED, Label.NO_FACT]
    again = pickle.loads(pickle.dumps(verifier))
    assert again.verify([VerifierInput(PAIRS[1][1], None, (PAIRS[1][0],), {})]) == verifier.verify(
        [VerifierInput(PAIRS[1][1], None, (PAIRS[1][0],), {})]
    )


def test_other_weights_are_another_judge(monkeypatch, tmp_path):
    names = {type(judge).__name__: describe_component(judge)["revision"] for judge in (SmallJudge(), LexicalJudge())}
    assert len(set(names.values())) == 2
    changed = tmp_path / "weights.safetensors"
    changed.write_bytes(b"other weights")
    before = digest()
    monkeypatch.setattr("hf_factuality.verifiers.judges.small.network.WEIGHTS", changed)
    assert digest() != before and SmallJudge().revision != names["SmallJudge"]
    monkeypatch.undo()
    assert SmallJudge().revision == names["SmallJudge"]
    monkeypatch.setitem(small.JOINED, "words", 9.0)
    assert SmallJudge().revision != names["SmallJudge"]


def test_other_rules_are_another_judge(monkeypatch, tmp_path):
    before = SmallJudge().revision
    for path in Path(small.__file__).parent.glob("*.py"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(small, "__file__", str(tmp_path / "judge.py"))
    small._rules.cache_clear()
    try:
        assert SmallJudge().revision == before
        with (tmp_path / "network.py").open("a", encoding="utf-8") as file:
            file.write("LONGEST = 5\n")
        small._rules.cache_clear()
        assert SmallJudge().revision != before
    finally:
        small._rules.cache_clear()


@pytest.mark.parametrize(
    "name",
    "JOINED_INTERCEPT COSTS_WORDS COSTS_SCALE MORE_WORDS MORE_SCALE MORE_SHARE NARROWED SAME_NUMBER SAME_WORDS SENTENCES SENTENCES_SCALE WORDS WORDS_SCALE "
    "NETWORK_PART WORKED_OUT NOTHING_SHARED SENTENCE_WORDS WHOLE_WORDS LONGEST_WORD".split(),
)
def test_other_amounts_are_another_judge(name, monkeypatch):
    before = SmallJudge().revision
    monkeypatch.setattr(small, name, getattr(small, name) + 1)
    assert SmallJudge().revision != before


def test_a_network_of_other_weights():
    """Word vectors stay whole numbers; a layer fewer is read from the names."""
    from safetensors.torch import load_file

    stored = {name: tensor for name, tensor in load_file(WEIGHTS).items() if not name.startswith("encoder.layer.11.")}
    network = Network(stored, Tokenizer.from_file(str(TOKENIZER)))
    assert len(network.layers) == 11 and network.words.dtype is torch.int8
    assert network.probabilities(PAIRS[:1])[0] != load_network().probabilities(PAIRS[:1])[0]
