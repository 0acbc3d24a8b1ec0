"""What a card calls a run: by the rewards and the credit that were paid, and never by the trainer alone."""

import json
import re
from functools import partial

import pytest

from hf_factuality import FactGRPOTrainer
from hf_factuality.generation.client import ChatClient
from hf_factuality.hub.cards.check import card_problems
from hf_factuality.methods.klcf.formula import KLCFWeights
from hf_factuality.rewards import (
    AbstentionReward,
    ChecklistReward,
    ClaimReward,
    CorrectionReward,
    DCPORewards,
    GradedOutcome,
    LongFormReward,
    ProcessReward,
    RLCRReward,
    RLFHReward,
    answer_reward,
    exact_reward,
    klcf_rewards,
    think_format_reward,
)
from hf_factuality.trainers import CorrectionRollout, FaithfulPrefixRollout
from hf_factuality.verifiers import LexicalVerifier
from tests.conftest import fast_few
from tests.hub.cards.card_oracle import header_and_text
from tests.tiny import letters_reward
from tests.trainers.recording import WholeCompletion, vowels
from tests.trainers.test_fact_grpo_trainer import make
from tests.trainers.test_settings import dpo, ppo


# The papers' numbers on arXiv, looked up by hand.
IDS = {"FaithRL": "2602.05897", "FSPO": "2505.24630", "RLFH": "2406.12221", "KLCF": "2509.23765", "TruthRL": "2509.25760", "KnowRL": "2506.19807",
       "Binary RAR": "2510.17733", "RLCR": "2507.16806", "DCPO": "2603.09117", "LoVeC": "2505.23912", "CorVer": "2605.29648",
       "Why": "2509.04664", "Learning to Reason": "2508.05618", "Correction": "2502.19613", "Mask-DPO": "2503.02846",
       "DPO": "2305.18290"}  # fmt: skip
OURS = {"trl", "generated_from_trainer", "hf_factuality"}
PLAIN = {"credit": "none", "factuality_reward_weight": 0.0}


class Doubled(AbstentionReward):
    """Whose rewards nobody but its author knows."""

    def __call__(self, *args, **kwargs):
        return [2 * reward for reward in super().__call__(*args, **kwargs)]


def renamed(name):
    reward = AbstentionReward("truthrl")
    reward.__name__ = name
    return reward


def truthrl(prompts, completions, **columns):
    """Somebody's own function with the name of a method."""
    return [0.0] * len(completions)


def lengths(labels):
    return float(len(labels))


def checklist():
    return ChecklistReward(LexicalVerifier().judge)


def card_of(trainer, tmp_path):
    trainer.create_model_card(model_name="m")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card_problems(text) == []
    return header_and_text(text)


def said(text):
    """The sentence under the title, the papers that are named anywhere, and the limits."""
    ids = set(re.findall(r"papers/(\d{4}\.\d{5})", text))
    assert ids == set(re.findall(r"arxiv.org/abs/(\d{4}\.\d{5})", text)), "cited are the papers that are named"
    return text.split("# m\n", 1)[1].split("## How to use")[0], ids, text.split("## Limits")[1].split("## Citation")[0]


# Rewards; settings; beginning of what it was trained with; papers; tags of methods.
GRPO = [
    ([letters_reward], {}, "FSPO combined with custom rewards (`letters_reward`)", ["FSPO"], ["fspo"]),
    (None, {}, "FSPO,", ["FSPO"], ["fspo"]),
    ([answer_reward(), think_format_reward], {}, "FSPO,", ["FSPO"], ["fspo"]),
    ([answer_reward()], {"variant": "released"}, "FSPO,", ["FSPO"], ["fspo"]),
    ([answer_reward()], {"variant": "paper_format", "verify_scope": "think"}, "FSPO,", ["FSPO"], ["fspo"]),
    (["truthrl"], {}, "FSPO combined with TruthRL,", ["FSPO", "TruthRL"], ["fspo", "truthrl"]),
    (["truthrl"], PLAIN, "TruthRL,", ["TruthRL"], ["truthrl"]),
    ([renamed("mine")], PLAIN, "TruthRL,", ["TruthRL"], ["truthrl"]),
    ([AbstentionReward(correct=1, abstained=0, wrong=-1)], PLAIN, "TruthRL,", ["TruthRL"], ["truthrl"]),
    ([partial(AbstentionReward("truthrl"))], PLAIN, "TruthRL,", ["TruthRL"], ["truthrl"]),
    (["truthrl"], {**PLAIN, "credit": "flip"}, "TruthRL combined with flip credit", ["TruthRL"], ["truthrl"]),
    (["truthrl"], {**PLAIN, "factuality_reward_weight": 1.0}, "TruthRL combined with the sentences' mean", ["TruthRL"], ["truthrl"]),
    (["truthrl", "binary_rar"], PLAIN, "TruthRL combined with Binary RAR,", ["TruthRL", "Binary RAR"], ["truthrl", "binary-rar"]),
    (["truthrl", "rlcr", "binary_rar"], PLAIN, "TruthRL combined with RLCR and Binary RAR,", ["TruthRL", "RLCR", "Binary RAR"], ["truthrl", "rlcr", "binary-rar"]),
    (["truthrl", letters_reward], {**PLAIN, "reward_weights": [0.0, 1.0]}, "GRPO with custom rewards (`letters_reward`)", [], []),
    (["truthrl", letters_reward], {**PLAIN, "reward_weights": [0.5, 0.0]}, "TruthRL,", ["TruthRL"], ["truthrl"]),
    (["truthrl"], {**PLAIN, "reward_weights": [-1.0]}, "GRPO with custom rewards (`truthrl, of weight -1`)", [], []),
    ([truthrl], PLAIN, "GRPO with custom rewards (`truthrl`)", [], []),
    ([Doubled("truthrl")], PLAIN, "GRPO with custom rewards (`truthrl`)", [], []),
    ([AbstentionReward("knowrl")], PLAIN, "GRPO with KnowRL's reward of the outcome", ["KnowRL"], []),
    ([LongFormReward("knowrl")], PLAIN, "KnowRL,", ["KnowRL"], ["knowrl"]),
    (["target-0.75"], PLAIN, "GRPO with a confidence target,", ["Why"], []),
    (["binary"], PLAIN, "GRPO with a binary reward", [], []),
    ([AbstentionReward(correct=3, abstained=1, wrong=-5)], PLAIN, "GRPO with a reward of declining,", [], []),
    (klcf_rewards(checklist())[0], PLAIN, "KLCF,", ["KLCF"], ["klcf"]),
    (klcf_rewards(checklist(), length=letters_reward, weights=KLCFWeights(general=0, length=1))[0], PLAIN, "KLCF combined with custom", ["KLCF"], ["klcf"]),
    ([checklist().recall], PLAIN, "GRPO with a part of KLCF's reward,", ["KLCF"], []),
    (["truthfulness"], PLAIN, "GRPO with a part of KLCF's reward,", ["KLCF"], []),
    (["precision"], PLAIN, "GRPO with the precision of the claims,", [], []),
    (["precision_detail"], PLAIN, "GRPO with precision and detail", ["Learning to Reason"], []),
    (["f1_at_k"], PLAIN, "GRPO with F1@K of the claims,", [], []),
    (["corver"], PLAIN, "GRPO with CorVer's counts of pairs,", ["CorVer"], []),
    ([LongFormReward(lengths)], PLAIN, "GRPO with custom rewards (`lengths`)", [], []),
    (["dcpo"], PLAIN, "DCPO,", ["DCPO"], ["dcpo"]),
    ([DCPORewards().calibration], PLAIN, "GRPO with DCPO's reward of the confidence,", ["DCPO"], []),
    (["lovec"], {**PLAIN, "verify_scope": "answer"}, "LoVeC,", ["LoVeC"], ["lovec"]),
    ([RLCRReward(released=True)], PLAIN, "RLCR,", ["RLCR"], ["rlcr"]),
    ([CorrectionReward("world")], PLAIN, "GRPO with the answers' score,", [], []),
    ([exact_reward], PLAIN, "GRPO with the answers' score,", [], []),
    ([ProcessReward("lexical")], PLAIN, "GRPO with the steps' scores,", [], []),
    ([ClaimReward("binary_rar", "lexical", at="end")], PLAIN, "Binary RAR,", ["Binary RAR"], ["binary-rar"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rewards", "settings", "method", "papers", "tags"), fast_few(GRPO, *range(0, 99, 3)), ids=range(len(GRPO))
)
def test_the_card_of_grpo(tiny_model, tmp_path, rewards, settings, method, papers, tags):
    trainer = make(tiny_model, tmp_path, WholeCompletion(), None, rewards, settings)
    header, text = card_of(trainer, tmp_path)
    sentence, ids, limits = said(text)
    assert f", trained with {method}" in sentence.replace(". Made by", ",")
    assert ids == {IDS[name] for name in papers}
    assert set(header["tags"]) == {*OURS, "fact-grpo", *tags}
    assert set(trainer.model.model_tags) == {"trl", "fact-grpo", "hf_factuality", *tags}, (
        "what a push of the model tags"
    )
    assert ("custom rewards" in sentence) == ("this card cannot tell" in limits)
    assert trainer._paper.get("id") == (IDS[papers[0]] if len(papers) == 1 else None), "what TRL's own card would cite"


PPO = [
    (vowels, None, {}, "PPO with custom rewards (`vowels`)", [], []),
    (RLFHReward("lexical", rate=3), None, {}, "RLFH,", ["RLFH"], ["rlfh"]),
    ([RLFHReward("lexical", rate=3), vowels], None, {}, "RLFH combined with custom rewards (`vowels`)", ["RLFH"], ["rlfh"]),
    ([RLFHReward("lexical", rate=3), vowels], None, {"token_reward_weights": [0.0, 1.0]}, "PPO with custom rewards (`vowels`)", [], []),
    (ClaimReward("binary_rar", "lexical"), None, {}, "PPO with the reward of Binary RAR,", ["Binary RAR"], []),
    (None, ["truthrl"], {}, "PPO with the reward of TruthRL,", ["TruthRL"], []),
    (RLFHReward("lexical", rate=3), ["truthrl"], {}, "RLFH combined with the reward of TruthRL,", ["RLFH", "TruthRL"], ["rlfh"]),
    (ProcessReward("lexical", at="gains"), None, {}, "PPO with the steps' scores,", [], []),
]  # fmt: skip


@pytest.mark.parametrize(("tokens", "rewards", "settings", "method", "papers", "tags"), PPO, ids=range(len(PPO)))
def test_the_card_of_ppo(tiny_model, tmp_path, tokens, rewards, settings, method, papers, tags):
    header, text = card_of(ppo(tiny_model, tmp_path, tokens, rewards, **settings), tmp_path)
    sentence, ids, _ = said(text)
    assert f", trained with {method}" in sentence.replace(". Made by", ",")
    assert ids == {IDS[name] for name in papers}
    assert set(header["tags"]) == {*OURS, "token-reward-ppo", *tags}


def test_rlfhs_reward_by_grpo_is_not_rlfh(tiny_model, tmp_path):
    reward = RLFHReward("lexical", rate=3, granularity="sentence")
    settings = {**PLAIN, "credit": "to_go"}
    header, text = card_of(make(tiny_model, tmp_path, None, None, None, settings, token_reward_funcs=reward), tmp_path)
    assert "trained with FactGRPO with the reward of RLFH and to_go credit, after [" in text
    assert not {"rlfh", "fspo"} & set(header["tags"]) and "`rlfh` (by sentence)" in text
    assert "| verifier | rlfh by LexicalVerifier: `SentenceExtractor()`" in text


def test_two_turns_are_self_correction(tiny_model, tmp_path):
    trainer = make(
        tiny_model, tmp_path, None, None, CorrectionReward("world"), PLAIN, rollout_func=CorrectionRollout()
    )
    header, text = card_of(trainer, tmp_path)
    assert (
        IDS["Correction"] in text and "self-rewarding-correction" in header["tags"] and "| verifier | none |" in text
    )


def test_completions_from_faithful_prefixes(tiny_model, tmp_path):
    rollout = FaithfulPrefixRollout()
    _, text = card_of(make(tiny_model, tmp_path, WholeCompletion(), None, None, {}, rollout_func=rollout), tmp_path)
    assert "trained with FSPO combined with completions that go on from faithful prefixes, after [" in text
    assert {IDS["FSPO"], IDS["FaithRL"]} == said(text)[1]
    own = type("Own", (FaithfulPrefixRollout,), {})()
    _, text = card_of(make(tiny_model, tmp_path, WholeCompletion(), None, None, {}, rollout_func=own), tmp_path)
    assert {IDS["FSPO"]} == said(text)[1]


def test_what_a_stated_confidence_is_for(tiny_model, tmp_path):
    for reward in ("rlcr", "dcpo"):
        sentence, _, limits = said(card_of(make(tiny_model, tmp_path, None, None, [reward], PLAIN), tmp_path)[1])
        assert "with the aim that the confidence that it states is the share" in sentence
        assert "unsure" not in sentence


def test_what_was_checked_against_what(tiny_model, tmp_path):
    """A reader learns that gold answers paid, and not a verifier; who graded; and what each outcome paid."""
    graded = AbstentionReward("truthrl", outcome=GradedOutcome(ChatClient("http://localhost:1/v1", "org/judge")))
    _, text = card_of(make(tiny_model, tmp_path, None, None, graded, PLAIN), tmp_path)
    limits = said(text)[2]
    assert "closed book" in limits and "what the verifier labels" not in limits and "grade" in limits
    assert "`truthrl` (correct 1, declined 0, wrong -1, graded by org/judge)" in text and "localhost" not in text
    _, text = card_of(make(tiny_model, tmp_path, WholeCompletion(), None, None, {}), tmp_path)
    limits = said(text)[2]
    assert "what the verifier labels" in limits and "closed book" not in limits
    assert "| objective | paper: factuality reward weight 1, ternary labels, flip credit," in text
    _, text = card_of(make(tiny_model, tmp_path, WholeCompletion(), None, ["binary_rar"], PLAIN), tmp_path)
    assert "| objective | none credit, dapo loss; rewards `binary_rar`, `factuality` (logged only) |" in text


def test_who_judges_for_single_rewards(tiny_model, tmp_path):
    rewards = [checklist().recall, ClaimReward("precision", "lexical", at="end")]
    _, text = card_of(make(tiny_model, tmp_path, WholeCompletion(), None, rewards, PLAIN), tmp_path)
    row = next(line for line in text.splitlines() if line.startswith("| verifier"))
    assert "WholeCompletion; checklist_recall by VerifierPipeline" in row.replace("\\", "")
    assert "; precision by LexicalVerifier" in row and "`factuality` (logged only)" in text


def test_a_subclass_of_a_trainer_keeps_its_tags(tiny_model, tmp_path):
    class Mine(FactGRPOTrainer):
        _tag_names = ["trl", "mine", "hf_factuality"]

    header, _ = card_of(make(tiny_model, tmp_path, None, None, ["truthrl"], PLAIN, trainer=Mine), tmp_path)
    assert set(header["tags"]) == {*OURS, "mine", "truthrl"}


@pytest.mark.parametrize(
    ("labels", "method", "paper", "tag"),
    [
        ({}, "Mask-DPO", "Mask-DPO", "mask-dpo"),
        (
            {"chosen_labels": ["all"]},
            "Mask-DPO of which only the rejected completion is masked",
            "Mask-DPO",
            "mask-dpo",
        ),
        ({"chosen_labels": ["all"], "rejected_labels": ["all"]}, "DPO", "DPO", "dpo"),
    ],
)
def test_the_card_of_mask_dpo(tiny_model, tmp_path, monkeypatch, labels, method, paper, tag):
    from tests.trainers.test_settings import CONFIGS, MaskDPOConfig

    monkeypatch.setitem(CONFIGS, MaskDPOConfig, {**CONFIGS[MaskDPOConfig], **labels})
    header, text = card_of(dpo(tiny_model, tmp_path), tmp_path)
    sentence, ids, _ = said(text)
    assert f"trained with {method}, the method of [" in sentence and ids == {IDS[paper]}
    assert set(header["tags"]) == {*OURS, tag}


def test_the_table_holds_what_the_code_says_elsewhere():
    """Every paper of a method is named in the docs by the same number, so that none was mistyped."""
    from hf_factuality.hub.cards.methods import METHODS
    from tests.test_docs import REPOSITORY

    docs = " ".join(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").glob("*.md"))
    docs += json.dumps(IDS) + "2304.06767"
    for key, method in METHODS.items():
        assert method.paper is None or method.paper.id in docs, key
        assert method.name is None or (method.paper and method.tag), f"{key}: a method has a paper and a tag"
