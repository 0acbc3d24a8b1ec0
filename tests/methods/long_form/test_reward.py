"""Rewards of long answers through real trainers: by name, with judges that fail, as KLCF's bundle, and at the claims."""

import math
import re
from itertools import product
from pathlib import Path

import pytest
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import get_soft_overlong_punishment

from hf_factuality import FactGRPOConfig, Label, LabeledSpan, TokenRewardPPOConfig, Verification
from hf_factuality.errors import DataError, JudgingError, NonFiniteError
from hf_factuality.methods.klcf.formula import KLCFWeights
from hf_factuality.methods.long_form.judge import name_pair
from hf_factuality.reading.rules import is_refusal_sentence
from hf_factuality.retrieval import CorpusRetriever, KnowledgeBase, PassageConfig, PassageCounts
from hf_factuality.rewards import (
    ChecklistReward,
    ClaimReward,
    FormatReward,
    LongFormReward,
    answer_outcome,
    ended_answer_reward,
    hotpot_f1_reward,
    klcf_rewards,
    long_form_reward,
)
from hf_factuality.rewards.names import named_rewards
from hf_factuality.verifiers import CooccurrenceJudge, Judgement, SentenceExtractor, VerifierInput, VerifierPipeline
from tests.tiny import letters_reward, rows
from tests.trainers.recording import QUIET, fixed_rewards
from tests.trainers.test_fact_grpo_trainer import ONE_BATCH, group_advantages, make, one_generation, saying
from tests.trainers.token_reward_ppo_oracle import make as make_ppo


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
SCORES = {S: 0.9, C: 0.1, U: 0.5, N: None, None: None}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "long-form.md"
ANSWERS = (
    "<think>He sat. He ran. He won.</think><answer>Paris</answer>",
    "<think>He sat.</think><answer>I don't know.</answer>",
    "<think></think><answer>Rome</answer>",
    "<think>He ran!</think><answer>Paris</answer>",
)
FOUND = dict(zip(ANSWERS, ((S, S, C), (S,), (), "raise"), strict=True))


class Claims:
    """Gives a completion the claims that a table has for it, one character each; counts what it is asked."""

    requires_evidence = False

    def __init__(self, table):
        self.table, self.asked = table, []

    def verify(self, inputs):
        if len(inputs) > 1 and "raise" in self.table.values():
            raise RuntimeError("one at a time, please")
        self.asked += [item.completion for item in inputs]
        if any(self.table[item.completion] == "raise" for item in inputs):
            raise RuntimeError("judge down")
        return [
            Verification(tuple(LabeledSpan(i, i + 1, label, SCORES[label]) for i, label in enumerate(labels)))
            for labels in (self.table[item.completion] for item in inputs)
        ]


class AnyText(dict):
    """No, one or two claims, by the length of the text."""

    def __missing__(self, text):
        return (S, C)[: min(len(text), len(text) % 3)]


class Reads:
    """A judge of checklists: an item is consistent or contradicted as the answer says `yes ITEM` or `no ITEM`."""

    def __init__(self, broken=()):
        self.broken, self.asked = broken, []

    def judge(self, inputs):
        self.asked += [(item.claim, item.evidence) for item in inputs]
        return [self.one(item.claim, *item.evidence) for item in inputs]

    def one(self, item, answer="", *more):
        if any(word in answer for word in self.broken):
            return Judgement(None)
        return Judgement(S if f"yes {item}" in answer else C if f"no {item}" in answer else U)


def with_columns(**columns):
    data = rows(4)
    for name, value in columns.items():
        data = data.add_column(name, [value] * 4)
    return data


def rewards_of(trainer):
    """Per reward function the four rewards of a group, as the trainer logs them."""
    return {name: list(values) for name, values in trainer._logs["rewards"].items()}


PLAIN = {"credit": "none", "factuality_reward_weight": 0.0, "max_completion_length": 96}
BY_HAND = {  # of the first three answers
    "precision": [2 / 3, 1, 0],
    "binary_rar": [0, 1, 1],
    "precision_detail": [2 / 4 + 0.1 * math.log(3), 1 / 2 + 0.1 * math.log(2), 0],
    "f1_at_k": [2 * 2 / (3 + 32), 2 * 1 / (1 + 32), 0],  # 2 S / (claims + K)
    "knowrl": [2 + 2 / 3, 1 + 1, -1],
    "truthfulness": [1.9 / 3, 0.9, 0],
}


def step(model, folder, rewards, verifier=None, texts=ANSWERS, data=None, **config):
    """A trainer after one generation of four given answers, and their advantages."""
    verifier, data = verifier or Claims(FOUND), data or with_columns(answer="Paris")
    trainer = make(model, folder, verifier, data, rewards, {**PLAIN, **config}, saying(*texts))
    return trainer, one_generation(trainer)["advantages"].tolist()


# By name


@pytest.mark.parametrize("aggregation", ["sum_then_normalize", "normalize_then_sum"])
def test_every_name_in_a_step_and_what_could_not_be_judged_is_its_groups_mean(tiny_model, tmp_path, aggregation):
    rewards = [*BY_HAND, fixed_rewards([0.0] * 4)]
    trainer, advantages = step(tiny_model, tmp_path, rewards, multi_objective_aggregation=aggregation)
    for name, expected in BY_HAND.items():
        assert rewards_of(trainer)[name] == pytest.approx([*expected, sum(expected) / 3]), name
    assert advantages[3] == pytest.approx(0, abs=1e-5)


def test_one_call_of_the_verifier_however_many_rewards(tiny_model, tmp_path):
    verifier = Claims({**FOUND, ANSWERS[3]: ()})
    step(tiny_model, tmp_path, [*BY_HAND, letters_reward], verifier)
    assert sorted(verifier.asked) == sorted(ANSWERS)


def test_a_users_none_counts_as_in_trl_unless_it_reads_what_was_judged(tiny_model, tmp_path):
    def plain(completions, **columns):
        return [1.0, None, 3.0, 2.0]

    def reads(completions, verifications, **columns):
        return [1.0, None, 3.0, 2.0]

    trainer, _ = step(tiny_model, tmp_path, [plain, reads, letters_reward])
    assert math.isnan(rewards_of(trainer)["plain"][1]) and rewards_of(trainer)["reads"][1] == 2.0


def test_what_no_function_knows_stays_out(tiny_model, tmp_path):
    """With nothing but rewards of labels, the answer that could not be judged has no reward to be filled in."""
    trainer, advantages = step(tiny_model, tmp_path, ["precision"])
    assert math.isnan(rewards_of(trainer)["precision"][3]) and advantages[3] == 0
    assert advantages[:3] == pytest.approx(group_advantages(BY_HAND["precision"]), abs=1e-4)


def test_names_that_are_none(tiny_model, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="'binary-rar' is no reward; did you mean 'binary_rar'"):
        make(tiny_model, tmp_path, Claims({}), reward_funcs=["binary-rar"])
    with pytest.raises(ValueError, match="'precision_detail_relevance' needs relevance"):
        make(tiny_model, tmp_path, Claims({}), reward_funcs="precision_detail_relevance")
    with pytest.raises(TypeError, match="a judge needs a method `judge`; NoneType"):
        make(tiny_model, tmp_path, Claims({}), reward_funcs="klcf")
    for rewards in ("binary_rar", [long_form_reward("binary_rar")], "klcf"):
        with pytest.raises(ValueError, match="'(binary_rar|klcf)' reads what a verifier found.*ClaimReward"):
            make_ppo(tiny_model, tmp_path, reward_funcs=rewards)
    (tmp_path / "binary-rar").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("binary-rar", "org/binary-rar"):  # a folder, and the form of a model on the Hub, are TRL's
        assert named_rewards(name, Claims({})) == [name]


def test_settings_are_refused_when_they_are_made():
    for name, settings, error, match in (
        ("rar", {}, ValueError, "unknown reward 'rar'; choose one of .*'binary_rar'.*'corver'"),
        ("f1_at_k", {"k": 0}, ValueError, "k=0 must be"),
        ("f1_at_k", {"k": "32"}, ValueError, "k='32' must be"),
        ("precision_detail", {"detail_weight": math.nan}, ValueError, "detail_weight=nan must be"),
        # Not only where the formula can be tried without any completion.
        (
            "precision_detail_relevance",
            {"relevance": letters_reward, "detail_weight": math.nan},
            ValueError,
            "=nan must",
        ),
        (
            "precision_detail_relevance",
            {"relevance": letters_reward, "relevance_weight": "1"},
            ValueError,
            "='1' must",
        ),
        ("knowrl", {"released": math.nan}, ValueError, "released=nan must be"),
        ("binary_rar", {"k": 3}, TypeError, "'k'"),
        ("binary_rar", {"outcome": letters_reward}, TypeError, "'outcome'"),
    ):
        with pytest.raises(error, match=match):
            long_form_reward(name, **settings)


def test_f1_counts_the_supported_claims_and_not_all_of_them():
    """Another code's recall is min(1, all claims / K), which pays for false ones."""
    found = [Verification(tuple(LabeledSpan(0, 1, label) for label in labels)) for labels in ([S], [S] + [C] * 9)]
    few, many = long_form_reward("f1_at_k", k=10)(completions=["a", "b"], verifications=found)
    assert (few, many) == (pytest.approx(2 / 11), pytest.approx(2 / 20))


def test_a_term_of_another_reward_function():
    def judge(prompts, completions, **columns):
        return [1.0, 0.0, None]

    found = [Verification((LabeledSpan(0, 1, S),))] * 3
    reward = long_form_reward("precision_detail_relevance", relevance=judge, relevance_weight=0.5)
    base = 1 / 2 + 0.1 * math.log(2)
    assert reward(prompts=[""] * 3, completions=[""] * 3, verifications=found) == [
        pytest.approx(base + 0.5), pytest.approx(base), None
    ]  # fmt: skip


# KnowRL's outcome


def test_outcomes():
    texts = ["Paris", "Rome", "I don\u2019t know.", "", "Rome?", "I'm sorry, it is Rome.", "我不知道。"]
    completions = [f"<think>Paris</think><answer>{text}</answer>" for text in texts] + ["Paris"]
    columns = {"prompts": [""] * 8, "completions": completions, "answer": ["Paris"] * 8}
    expected = ["correct", "wrong", "refused", "wrong", "wrong", "wrong", "refused", "wrong"]
    assert answer_outcome()(**columns) == expected
    # The wider rule takes what apologises or asks for a refusal, and so pays wrong answers in that shape.
    wide = answer_outcome(hotpot_f1_reward, is_refusal_sentence, threshold=0.3)
    assert wide(**columns)[4:6] == ["refused", "refused"]
    assert answer_outcome()(**{**columns, "answer": [""] * 8}) == [None] * 8


def test_an_answer_that_is_hidden_in_the_reasoning_is_none():
    completions = [
        "<think>a<answer>Paris</answer></think>",
        "a<answer>Paris</answer></think>",  # the prompt opened it
        "<answer>Rome</answer><THINK>a<answer>Paris</answer></THINK>",
        "<think>a<answer>I don't know</answer></think>",
        "<think>a<answer>Rome</answer></think><answer>Paris</answer>",
        "<think>a<answer>Paris</answer>",  # the tag of the answer ends what was not closed
    ]
    columns = {"prompts": [""] * 6, "completions": completions, "answer": ["Paris"] * 6}
    assert answer_outcome()(**columns) == ["wrong"] * 4 + ["correct"] * 2


def test_numbers_that_are_none_are_unknown_or_refused():
    scorer = lambda completions, **columns: [float("nan")]  # noqa: E731
    assert answer_outcome(scorer)(["<answer>a</answer>"]) == [None]
    for name in ("precision", "binary_rar"):
        with pytest.raises(ValueError, match="finite"):
            long_form_reward(name, empty=float("nan"))


def test_knowrl_of_the_released_code():
    reward = long_form_reward("knowrl", released=True, outcome=lambda completions, **columns: ["correct", "wrong"])
    found = [Verification((LabeledSpan(0, 1, C),)), Verification((LabeledSpan(0, 1, S),))]
    assert reward(completions=["", ""], verifications=found) == [2.0, pytest.approx(-1 + math.exp(1 - 10))]


# Checklists


ITEMS = ["a", "b", " c\n d "]


def checked(judge, *texts, **columns):
    checklist = ChecklistReward(judge)
    columns = {"prompts": [""] * len(texts), "completions": texts, "checklist": [ITEMS] * len(texts), **columns}
    return checklist.recall(**columns), checklist.precision(**columns), judge.asked


def test_recall_and_precision_of_the_answer():
    recall, precision, asked = checked(
        Reads(), "yes a no b yes c d", "<think>yes a yes b</think> no a", "", "<think>yes a", "yes c d"
    )
    # Silence and mere reasoning miss every item, and no judge is asked about them.
    assert recall == pytest.approx([2 / 3, 0, 0, 0, 1 / 3]) and precision == pytest.approx([2 / 3, 0, 0, 0, 1])
    assert len(asked) == 3 * 3 and ("c d", ("no a",)) in asked  # once for both rewards, an item in one line


def test_checklists_that_are_none():
    recall, precision, asked = checked(Reads(), "yes a", "", "yes a", checklist=[[], None, ["a", " "]])
    assert recall == [None, None, 1.0] and precision == [None, None, 1.0] and len(asked) == 1
    with pytest.raises(DataError, match="'checklist' must hold text"):
        checked(Reads(), "yes a", checklist=[[["a"]]])
    with pytest.raises(DataError, match="no 'checklist'; name it: .*column="):
        ChecklistReward(Reads()).recall(prompts=[""], completions=["yes a"])


def test_a_checklist_whose_judge_fails():
    recall, precision, _ = checked(Reads(broken=["!"]), "yes a!", "yes a", "no a yes b")
    assert recall == [None, 1 / 3, 1 / 3] and precision == [None, 1.0, 0.5]
    with pytest.raises(JudgingError, match="judged none of the first 2"):
        checked(Reads(broken=["yes"]), "yes a", "yes b")


def test_a_list_that_was_changed_is_judged_again():
    checklist, texts = ChecklistReward(Reads()), ["yes a"]
    assert checklist.recall(texts, checklist=[["a"]]) == [1.0]
    assert checklist.recall(texts, checklist=[["a", "b"]]) == [0.5]
    texts[0] = "nothing"
    assert checklist.recall(texts, checklist=[["a", "b"]]) == [0.0]


def test_a_batch_of_the_same_texts_is_judged_again():
    """All processes judge together; one whose texts are those of its last batch must not stay away."""
    judge = Reads()
    checklist = ChecklistReward(judge)
    for number in (1, 2):
        columns = {"prompts": [""], "completions": ["yes a"], "checklist": [ITEMS]}
        assert checklist.recall(**columns) == checklist.recall(**columns) == [1 / 3]
        assert checklist.precision(**columns) == [1.0] and len(judge.asked) == 3 * number


# KLCF


KLCF_TEXTS = ("yes a yes b.", "yes a no b.", "no a", "yes a!")
KLCF_FOUND = dict(zip(KLCF_TEXTS, ((S, S), (S, C), (C,), "raise"), strict=True))
KLCF_DATA = with_columns(checklist=["a", "b"])
KLCF_BY_HAND = {  # the judge cannot read the last one: neither its checklist nor its claims
    "checklist_recall": [1, 1 / 2, 0],
    "checklist_precision": [1, 1 / 2, 0],
    "truthfulness": [0.9, 0.5, 0.1],
}


def klcf_step(model, folder, general, **settings):
    rewards, config = klcf_rewards(Reads(broken=["!"]), general)
    config = {**config, "max_completion_length": 96, **settings}
    trainer = make(model, folder, Claims(KLCF_FOUND), KLCF_DATA, rewards, config, saying(*KLCF_TEXTS))
    return trainer, one_generation(trainer)["advantages"].tolist()


def test_klcf_by_hand_and_the_general_scale_does_not_matter(tiny_model, tmp_path):
    general = [-1.0, 0.0, 2.0, 1.0]  # likes what is false

    def of_scale(scale, **settings):
        return klcf_step(tiny_model, tmp_path, fixed_rewards([scale * value for value in general]), **settings)

    trainer, advantages = of_scale(1)
    rewards = rewards_of(trainer)
    for name, expected in KLCF_BY_HAND.items():
        assert rewards[name] == pytest.approx([*expected, sum(expected) / 3], abs=1e-6)
    assert rewards["ended_answer_reward"] == [1, 1, 0, 1]
    assert trainer.reward_weights.tolist() == pytest.approx([1, 1, 1, 0.1, 1, 0])  # the last is factuality
    terms = [group_advantages([*e, sum(e) / 3]) for e in KLCF_BY_HAND.values()]
    terms += [[0.1 * a for a in group_advantages(general)], group_advantages([1, 1, 0, 1])]
    assert advantages == pytest.approx(group_advantages([sum(own) for own in zip(*terms, strict=True)]), abs=1e-3)
    assert of_scale(100)[1] == pytest.approx(advantages, abs=1e-3)
    # The control: summed first, the general reward of that scale decides alone.
    summed = of_scale(100, multi_objective_aggregation="sum_then_normalize")[1]
    assert summed == pytest.approx(group_advantages(general), abs=0.2) and advantages[0] > 0 > summed[0]


def test_klcf_trains_and_logs_each_term(tiny_model, tmp_path):
    """The general reward is a model that TRL loads, the length term TRL's."""
    length, weights = get_soft_overlong_punishment(16, 8), KLCFWeights(general=0.3, length=0.5)
    rewards, settings = klcf_rewards(Reads(), tiny_model, length, weights, FormatReward())
    assert settings["reward_weights"] == [1, 1, 1, 0.3, 1, 0.5]
    verifier = Claims(AnyText())
    trainer = make(tiny_model, tmp_path, verifier, KLCF_DATA, rewards, settings)
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    general = Path(tiny_model).name
    for name in (*KLCF_BY_HAND, general, "format", "soft_overlong_punishment_reward"):
        assert math.isfinite(entry[f"rewards/{name}/mean"]) and math.isfinite(entry[f"rewards/{name}/std"])
    assert entry[f"rewards/{general}/std"] > 0 and len(verifier.asked) == 4


def test_klcf_by_name_takes_the_judge_of_the_verifier(tiny_model, tmp_path):
    verifier = VerifierPipeline(SentenceExtractor(), Reads(), requires_evidence=False)
    trainer, _ = step(tiny_model, tmp_path, "klcf", verifier, ("yes a.", "no a."), KLCF_DATA)
    names = ["checklist_recall", "checklist_precision", "truthfulness", "ended_answer_reward", "factuality"]
    assert trainer.reward_func_names == names
    assert rewards_of(trainer)["checklist_recall"] == [0.5, 0, 0.5, 0]


def test_klcf_refuses_a_length_without_a_weight_and_a_weight_without_a_length():
    for length, weight in ((letters_reward, 0), (None, 1)):
        with pytest.raises(ValueError, match="KLCFWeights"):
            klcf_rewards(Reads(), length=length, weights=KLCFWeights(length=weight))
    rewards, settings = klcf_rewards(Reads(), weights=KLCFWeights(truth=0, format=0))
    assert len(rewards) == len(settings["reward_weights"]) == 2  # no general model, no weight


def test_ended_answers():
    texts = [
        "He won.",
        'He said "no!"\n',
        "**Bold.**",
        "他赢了。",
        "He won and",
        "",
        "<think>He won.</think>",
        "<think>a.</think> No.",
    ]
    expected = [1, 1, 1, 1, 0, 0, 0, 1]
    assert ended_answer_reward(prompts=[""] * 8, completions=texts) == expected
    assert ended_answer_reward(prompts=["Why? <think>"], completions=["He won."]) == [0]


# At the claims


LABELS = [labels for size in range(4) for labels in product([S, C, U, N, None], repeat=size)]


@pytest.mark.parametrize("name", BY_HAND)
def test_each_completion_earns_what_the_formula_says(name):
    texts = [f"bcd{number:03}" for number in range(len(LABELS))]
    verifier = Claims(dict(zip(texts, LABELS, strict=True)))
    settings = {"outcome": lambda completions, **columns: ["refused"] * len(completions)} if name == "knowrl" else {}
    reward = long_form_reward(name, **settings)
    columns = {"completions": texts, "completion_texts": texts, "prompts": [""] * len(texts)}
    paid = ClaimReward(reward, verifier)(**columns)
    totals = ClaimReward(reward, verifier, at="end")(**columns)
    values = {S: 0.9, C: 0.1, U: 0.5}
    for labels, spans, total in zip(LABELS, paid, totals, strict=True):
        known = [label for label in labels if label in values]
        if name == "truthfulness":  # by hand
            unknown = None in labels and not known
            expected = None if unknown else sum(values[label] for label in known) / len(known) if known else 0
            assert total == (None if expected is None else pytest.approx(expected))
        assert (spans is None) == (total is None)
        if spans is not None:
            assert math.fsum(value for *_, value in spans) == pytest.approx(total, abs=1e-11)
            unknown = [i + 1 for i, label in enumerate(labels) if label is None]
            assert not [end for _, end, _ in spans if end in unknown]


AGAIN = "Ada won. "
REPEATED = {"precision": 0.5, "f1_at_k": 2 / 34, "truthfulness": 0.5, "precision_detail": 1 / 3 + 0.1 * math.log(2)}


class Sentences(Claims):
    """Sentences of nine characters, of which the last is false."""

    def verify(self, inputs):
        counts = [(len(item.completion) + 1) // 9 for item in inputs]
        labels = [[S] * (count - 1) + [C] for count in counts]
        return [
            Verification(tuple(LabeledSpan(9 * i, 9 * i + 8, it, SCORES[it]) for i, it in enumerate(own)))
            for own in labels
        ]


@pytest.mark.parametrize("name", REPEATED)
def test_a_statement_is_paid_once_however_often_it_is_stated(name):
    """By hand: one true statement of two, so that P = 1/2, R = 1/32, F1 = 2 * 1/64 / (17/32) = 2/34."""
    text = AGAIN * 32 + "Ben ran. "
    given = {"completions": [text], "completion_texts": [text], "prompts": [""]}
    found = Sentences({}).verify([VerifierInput(text)])
    expected = REPEATED[name]
    assert LongFormReward(name)(verifications=found, **given) == [pytest.approx(expected)]
    every = {"precision": 32 / 33, "f1_at_k": 2 * 32 / 65, "truthfulness": (32 * 0.9 + 0.1) / 33}
    (all_of_them,) = LongFormReward(name, repeats="every")(verifications=found, **given)
    assert all_of_them == pytest.approx(every.get(name, 32 / 34 + 0.1 * math.log(33)))
    (paid,) = ClaimReward(name, Sentences({}))(**given)
    assert math.fsum(value for *_, value in paid) == pytest.approx(expected)
    assert {end for _, end, _ in paid} <= {8, 9 * 33 - 1, len(text)}
    (paid,) = ClaimReward(name, Sentences({}), repeats="every")(**given)
    assert math.fsum(value for *_, value in paid) == pytest.approx(all_of_them)
    with pytest.raises(ValueError, match="'twice'"):
        LongFormReward(name, repeats="twice")


def test_where_claims_are_paid_by_hand():
    text = "<think>no</think><answer>abc</answer>"
    verifier = Claims({"abc": (S, C, C), "no": (S,)})
    columns = {"completions": [text], "completion_texts": [text], "prompts": [""], "answer": ["abc"]}
    start, end = text.index("abc"), len(text)
    # 1 without claims, paid at the end; the first contradiction takes it away.
    assert ClaimReward("binary_rar", verifier)(**columns) == [[(start + 1, start + 2, -1.0), (end - 1, end, 1.0)]]
    assert ClaimReward("knowrl", verifier, scope="think")(**columns) == [[(7, 8, 1.0), (end - 1, end, 2.0)]]


def test_claims_out_of_order_and_reasoning_that_the_prompt_opened():
    class Two(Claims):
        def verify(self, inputs):
            self.asked += [item.completion for item in inputs]
            return [Verification((LabeledSpan(4, 6, C), LabeledSpan(0, 3, C)))] * len(inputs)

    def paid(text, prompt=""):
        return ClaimReward("binary_rar", Two({}))(completions=[text], completion_texts=[text], prompts=[prompt])

    assert paid("abcdefg") == [[(2, 3, -1.0), (6, 7, 1.0)]]  # the contradiction that ends first
    assert paid("no</think> abcdefg", "Why? <think>") == [[(13, 14, -1.0), (17, 18, 1.0)]]
    assert paid("abcdefg", "Why? <think>") == [[(6, 7, 1.0)]]  # never closed: there is no answer


def test_ppo_pays_at_the_claims(tiny_model, tmp_path):
    texts = [("Marie won.", True), ("No", False), ("", True)]
    verifier = Claims({"Marie won.": (C, S), "No": (None,), "": ()})
    trainer = make_ppo(tiny_model, tmp_path, ClaimReward("binary_rar", verifier), texts=texts)
    trainer._generate_and_score_completions([trainer.train_dataset[0]] * 3)
    first, unknown, empty = (paid and paid[0] for paid in trainer._token_rewards[0])
    assert unknown is None and first.sum() == 0 and first[0] == -1 and empty.tolist() == [1.0]
    assert trainer.reward_func_names == ["binary_rar"]


def test_other_trainers_take_it_at_the_end(tiny_model, tmp_path):
    verifier = Claims(AnyText())
    settings = dict(per_device_train_batch_size=4, num_generations=4, max_completion_length=8, max_steps=1, bf16=False,
                    use_cpu=True, report_to="none", save_strategy="no", logging_steps=1)  # fmt: skip
    reward = ClaimReward("precision", verifier, at="end")
    trainer = GRPOTrainer(tiny_model, reward, GRPOConfig(str(tmp_path), **settings), rows())
    trainer.train()
    assert math.isfinite(trainer.state.log_history[0]["rewards/precision/mean"])


def test_claim_rewards_that_are_none():
    for arguments, error in ((("rar", Claims({})), ValueError), (("precision", Claims({}), "all"), Exception)):
        with pytest.raises(error, match="rar|scope 'all'"):
            ClaimReward(*arguments)
    with pytest.raises(ValueError, match="at='start'"):
        ClaimReward("precision", Claims({}), at="start")
    with pytest.raises(DataError, match="needs completion_texts"):
        ClaimReward("precision", Claims({}))(completions=["a"], prompts=[""])


def test_a_formula_that_gives_no_number_ends_the_run(tiny_model, tmp_path):
    reward = ClaimReward(lambda labels: math.nan if labels else 0.0, Claims({"a": (S,)}))
    trainer = make_ppo(tiny_model, tmp_path, reward, texts=[("a", True)] * 3)
    with pytest.raises(NonFiniteError):
        trainer._generate_and_score_completions([trainer.train_dataset[0]] * 3)


def test_two_rewards_of_ours_have_two_names(tiny_model, tmp_path):
    short, long = long_form_reward("f1_at_k", k=8), long_form_reward("f1_at_k", k=64)
    with pytest.raises(ValueError, match="several reward functions are named .'f1_at_k'."):
        make(tiny_model, tmp_path, Claims({}), reward_funcs=[short, long])
    long.__name__ = "f1_at_64"
    trainer = make(tiny_model, tmp_path, Claims({}), reward_funcs=[short, long])
    assert trainer.reward_func_names == ["f1_at_k", "f1_at_64", "factuality"]


def test_batches_of_an_evaluation_do_not_end_a_training(tiny_model, tmp_path):
    judge, data = Reads(), with_columns(checklist=["a."])
    lists = ChecklistReward(judge)
    trainer, _ = step(tiny_model, tmp_path, lists.recall, texts=("yes a.",), data=data, verifier=Claims(AnyText()))
    judge.broken = ("yes",)

    def ask():
        texts = ["yes a."]
        return lists.recall(prompts=[""], completions=texts, completion_texts=texts, checklist=[["a."]])

    trainer.model.eval()
    assert [ask() for _ in range(4)] == [[None]] * 4
    trainer.model.train()
    with pytest.raises(JudgingError, match="3 batches in a row"):
        for _ in range(3):
            ask()


# CorVer


@pytest.mark.parametrize(
    ("sentence", "pair"),
    [
        ("Marie Curie was born in Warsaw in 1867.", ("Marie Curie", "Warsaw")),
        ("In 1903 the prize went to Curie.", ("1903", "Curie")),
        ("She was born in Warsaw in 1867.", None),  # as released: no signal for a pronoun
        ("Curie, Marie Curie.", None),
        ("nothing of note", None),
        ("Łódź and Ærø", ("Łódź", "Ærø")),
        ("", None),
    ],
)
def test_pairs_of_names(sentence, pair):
    assert name_pair(sentence) == pair


def corpus(folder, pages, size=100):
    base = KnowledgeBase.build(folder / "kb.sqlite", pages)
    return CorpusRetriever.build(base, PassageConfig(size=size))


def test_counts_are_exact(tmp_path):
    pages = [
        ("Marie Curie", "She was born in Warsaw. Warsaw is big."),  # the title counts
        ("Poland", "Warsaw is the capital. Marie Curie's house is there."),
        ("Pierre Curie", "He lived in Paris."),
        ("Bare", "Nothing."),
    ]
    index = PassageCounts(corpus(tmp_path, pages))
    for first, second, expected in (
        ("Marie Curie", "Warsaw", 2), ("warsaw", "CURIE", 2), ("Curie", "Curie", 3), ("Pierre", "Warsaw", 0),
        ("Curie", "Krakow", 0), ("the", "Warsaw", None), ("Curie", "...", None),
    ):  # fmt: skip
        assert index.count(first, second) == expected
    assert index.count("Marie Curie", "Warsaw") == 2  # asked again


def test_corver_by_hand_and_at_the_sentences():
    counts = {("Ann", "Rome"): 20, ("Bob", "Rome"): 0, ("Cy", "Rome"): 3, ("Di", "Rome"): None, ("Ed", "Rome"): 5}

    class Index:
        def count(self, first, second):
            return counts[first, second]

    texts = ["Ann saw Rome. Bob saw Rome. It rained.", "Cy saw Rome. Di saw Rome.", "Di saw Rome.", "It rained.", "",
             "Ed saw Rome."]  # fmt: skip
    verifier = VerifierPipeline(SentenceExtractor(), CooccurrenceJudge(Index()), requires_evidence=False)
    columns = {"completions": texts, "completion_texts": texts, "prompts": [""] * 6}
    totals = ClaimReward("corver", verifier, at="end")(**columns)
    # No pair is a signal of 0; what the index does not know is left out, and is all of the third.
    assert totals == [pytest.approx(-0.2 / 3), -0.1, None, 0, 0, 0]
    spans = ClaimReward("corver", verifier)(**columns)
    assert spans[0] == [(12, 13, 0.1), (26, 27, pytest.approx(-0.2)), (37, 38, pytest.approx(0.2 - 0.2 / 3 - 0.1))]
    assert spans[1] == [(11, 12, -0.1)] and spans[2] is None and spans[3] == spans[4] == spans[5] == []


def test_an_index_that_is_down_is_no_signal(tiny_model, tmp_path):
    class Index:
        def count(self, first, second):
            if first == "Bob":
                raise ConnectionError("down")
            return {"Ann": 20, "Cy": 0}[first]

    texts = ("Ann saw Rome.", "Cy saw Rome.", "Bob saw Rome.", "It rained.")
    verifier = VerifierPipeline(SentenceExtractor(), CooccurrenceJudge(Index()), requires_evidence=False)
    trainer, _ = step(tiny_model, tmp_path, ["corver", letters_reward], verifier, texts)
    assert rewards_of(trainer)["corver"] == pytest.approx([0.1, -0.3, -0.2 / 3, 0])


# The page


@pytest.mark.slow
def test_the_page_runs(tiny_model, tmp_path, monkeypatch):
    """As it stands, with settings of a tiny run; each block with what the page takes for granted."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    grouped = {**ONE_BATCH, "max_completion_length": 8}
    single = {**QUIET, "per_device_train_batch_size": 2, "max_completion_length": 8, "max_steps": 1}
    monkeypatch.setattr("hf_factuality.FactGRPOConfig", lambda name, **own: FactGRPOConfig(name, **{**grouped, **own}))
    monkeypatch.setattr("hf_factuality.TokenRewardPPOConfig", lambda name: TokenRewardPPOConfig(name, **single))
    monkeypatch.chdir(tmp_path)
    KnowledgeBase.build(tmp_path / "kb.sqlite", [("Ann", "She saw Rome.")])
    names = {"model": tiny_model, "dataset": KLCF_DATA, "judge": Reads(), "general": letters_reward}
    seen = []
    for block in blocks:
        names["verifier"] = Claims(AnyText())
        exec(block, names)  # noqa: S102 - our own page
        trainer = names["trainer"]
        seen.append(
            [name for name in trainer.reward_func_names if f"rewards/{name}/mean" in trainer.state.log_history[0]]
        )
    assert seen == [
        ["binary_rar", "f1_at_k", "short", "factuality"],
        [*KLCF_BY_HAND, "letters_reward", "ended_answer_reward", "factuality"],
        ["f1_at_k"],
        ["corver", "factuality"],
    ]


def test_what_a_chat_template_has_opened_is_reasoning():
    """The prompt is messages, in which the tag cannot be seen."""
    asked = {"prompts": [[{"role": "user", "content": "Where?"}]], "completions": ["It may be in Rome."]}
    assert ended_answer_reward(**asked) == [1.0]
    assert ended_answer_reward(**asked, think_opened=[True]) == [0.0]
    closed = {**asked, "completions": ["It may be in Rome.</think>In Paris."], "think_opened": [True]}
    assert ended_answer_reward(**closed) == [1.0]
    checklist = ChecklistReward(Reads())
    columns = {"completions": None, "prompts": asked["prompts"], "checklist": [["Rome"]]}
    assert checklist.recall(completion_texts=["yes Rome"], **columns, think_opened=[False]) == [1.0]
    assert checklist.recall(completion_texts=["yes Rome."], **columns, think_opened=[True]) == [0.0]
