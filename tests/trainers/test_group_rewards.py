"""FactGRPO with credit by what tokens earn, against a slow computation from the texts."""

import math
import sys

import pytest
from accelerate import PartialState
from accelerate.utils import gather_object

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, LabeledSpan, Verification
from hf_factuality.rewards import RLFHReward
from tests.conftest import fast_few
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import letters_reward, rows
from tests.trainers.recording import SETTINGS, WholeCompletion, vowels


class Keeps(FactGRPOTrainer):
    """Keeps what each batch came to, before it is shuffled."""

    kept = ()

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rows = zip(self._tokens, output["advantages"], output["completion_mask"].sum(1).tolist(), strict=True)
        self.kept = (*self.kept, [(tokens, row.tolist(), length) for tokens, row, length in rows])
        return output


def train(model, folder, token_reward_funcs=None, reward_funcs=None, verifier=None, **settings):
    own = {
        "verify_scope": "completion",
        "credit": "to_go",
        "scale_rewards": "none",
        "max_steps": 2,
        "num_iterations": 1,
    }
    own |= {} if verifier else {"factuality_reward_weight": 0.0}
    args = FactGRPOConfig(str(folder), **{**SETTINGS, **own, **settings})
    trainer = Keeps(
        model=model, reward_funcs=reward_funcs, args=args, train_dataset=rows(), verifier=verifier,
        token_reward_funcs=token_reward_funcs,
    )  # fmt: skip
    trainer.train()
    return trainer


def paid_rows(kept, points):
    """Per completion a reward per token: each point at the last token with a character before its end."""
    found = []
    for tokens, _, length in kept:
        row = [0.0] * length
        for _, end, value in points(tokens.text):
            row[max(at for at, (a, b) in enumerate(tokens.offsets) if a < b and a < end)] += value
        found.append(row)
    return found


def to_go(paid, size=4):
    out = []
    for number, row in enumerate(paid):
        if row is None:
            out.append(None)
            continue
        first = number // size * size
        others = [paid[k] for k in range(first, first + size) if k != number and paid[k] is not None]
        out.append([sum(row[t:]) - sum(sum(one[t:]) for one in others) / len(others) for t in range(len(row))])
    return out


def assert_advantages(kept, expected):
    assert any(any(row) for row in expected if row)
    for (_, advantages, length), row in zip(kept, expected, strict=True):
        assert advantages[:length] == pytest.approx(row or [0.0] * length, abs=1e-4) and not any(advantages[length:])


def vowel_points(text):
    return vowels([text])[0]


def test_token_rewards_are_paid_against_the_group(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path, vowels)
    for kept in trainer.kept:
        assert_advantages(kept, to_go(paid_rows(kept, vowel_points)))
    assert any(entry["rewards/vowels/mean"] for entry in trainer.state.log_history if "loss" in entry)


def test_other_rewards_are_paid_at_the_end(tiny_model, tmp_path):
    kept = train(tiny_model, tmp_path, vowels, letters_reward, reward_weights=[0.5]).kept[0]
    paid = paid_rows(kept, vowel_points)
    for row, (tokens, *_) in zip(paid, kept, strict=True):
        row[-1] += 0.5 * letters_reward([""], [[{"content": tokens.text}]])[0]
    assert_advantages(kept, to_go(paid))


def halves(text):
    """Two sentences; the first is true where the text has an even length."""
    middle, even = len(text) // 2, len(text) % 2 == 0
    return [(0, middle, 1 if even else -1), (middle, len(text), -1)] if middle else []


class Halves(WholeCompletion):
    def verify(self, inputs):
        labels = {1: Label.SUPPORTED, -1: Label.CONTRADICTED}
        return [
            Verification(spans=tuple(LabeledSpan(a, b, labels[value]) for a, b, value in halves(item.completion)))
            for item in inputs
        ]


def test_the_mean_factuality_is_paid_where_its_sentences_end(tiny_model, tmp_path):
    kept = train(tiny_model, tmp_path, verifier=Halves(), factuality_reward_weight=2.0).kept[0]
    paid = paid_rows(kept, lambda text: [(a, b, float(value)) for a, b, value in halves(text)])  # 2 / 2 sentences
    assert_advantages(kept, to_go(paid))


@pytest.mark.slow
def test_sentences_that_earn_nothing_are_no_statements(tiny_model, tmp_path):
    """Labels without a weight change nothing where token rewards are paid."""
    labelled = train(
        tiny_model, tmp_path, vowels, verifier=Halves(), credit="to_go_statement", factuality_reward_weight=0.0
    )
    plain = train(tiny_model, tmp_path, vowels, credit="to_go_statement")
    assert [row for _, row, _ in labelled.kept[0]] == [row for _, row, _ in plain.kept[0]]


def left_out(kept, points, known):
    return [row if know else None for row, know in zip(paid_rows(kept, points), known, strict=True)]


@pytest.mark.parametrize("credit", fast_few(["to_go", "process", "own"], 1))
def test_a_completion_of_which_something_is_unknown_learns_nothing(tiny_model, tmp_path, credit):
    known = [True, False, True, True, False, False, True, False]

    def some(completion_texts, **columns):
        return [points if know else None for points, know in zip(vowels(completion_texts), known, strict=True)]

    kept = train(tiny_model, tmp_path, some, letters_reward, max_steps=1, credit=credit).kept[0]
    # The second, and all of the second group, where there is nothing to compare with.
    learns = [any(advantages) for _, advantages, _ in kept]
    assert not learns[1] and not any(learns[4:]) and any(learns[:4])


def test_an_unknown_completion_is_in_nobodys_mean(tiny_model, tmp_path):
    known = [True, False, True, True] * 2

    def some(completion_texts, **columns):
        return [points if know else None for points, know in zip(vowels(completion_texts), known, strict=True)]

    kept = train(tiny_model, tmp_path, some, max_steps=1, credit="own", credit_scale=1e-9).kept[0]
    sums = [sum(row) for row in paid_rows(kept, vowel_points)]
    mean = sum(total for total, know in zip(sums[:4], known, strict=False) if know) / 3
    expected = [total - mean if know else 0.0 for total, know in zip(sums[:4], known, strict=False)]
    assert any(expected) and [advantages[0] for _, advantages, _ in kept[:4]] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("credit", fast_few(["to_go", "process", "own"], 1))
def test_a_reward_without_weight_is_for_the_log(tiny_model, tmp_path, credit):
    """Also where it is unknown."""

    def fails(completions, **columns):
        return [None if number == 1 else 7.0 for number in range(len(completions))]

    logged = train(tiny_model, tmp_path, vowels, fails, reward_weights=[0.0], max_steps=1, credit=credit)
    plain = train(tiny_model, tmp_path, vowels, max_steps=1, credit=credit)
    assert [row for _, row, _ in logged.kept[0]] == [row for _, row, _ in plain.kept[0]]
    assert logged.state.log_history[0]["rewards/fails/mean"] == 7.0


def test_a_judge_that_fails_on_one_completion_leaves_it_out(tiny_model, tmp_path):
    class Fails(Halves):
        def verify(self, inputs):
            found = super().verify(inputs)
            found[1] = Verification(error="no judge")
            return found

    kept = train(tiny_model, tmp_path, verifier=Fails(), max_steps=1).kept[0]
    paid = left_out(kept, lambda text: [(a, b, value / 2) for a, b, value in halves(text)], [k != 1 for k in range(8)])
    assert_advantages(kept, to_go(paid))


def test_completions_that_were_cut_are_compared_with_and_learn_nothing(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path, vowels, letters_reward, mask_truncated_completions=True,
                    max_completion_length=32, generation_kwargs={"sequence_bias": [[[1], 3.0]]}, max_steps=1)  # fmt: skip
    kept = [(tokens, advantages, len(tokens.offsets)) for tokens, advantages, _ in trainer.kept[0]]
    cut = [length == 0 for *_, length in trainer.kept[0]]
    assert any(cut) and not all(cut)
    paid = paid_rows(kept, vowel_points)
    for row, (tokens, *_) in zip(paid, kept, strict=True):
        row[-1] += letters_reward([""], [[{"content": tokens.text}]])[0]
    expected = to_go(paid)
    for (_, advantages, length), row, was_cut in zip(kept, expected, cut, strict=True):
        assert advantages[:length] == pytest.approx([0.0] * length if was_cut else row, abs=1e-4)


@pytest.mark.parametrize(
    "credit", fast_few(["own", "gae", "signed_gae", "to_go", "to_go_statement", "to_go_share", "process"], 0)
)
def test_each_credit_trains(tiny_model, tmp_path, credit):
    trainer = train(tiny_model, tmp_path, vowels, credit=credit, scale_rewards="group", credit_scale=0.5)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert any(losses) and all(map(math.isfinite, losses))
    assert trainer._card()["method"].title == f"FactGRPO with custom rewards (`vowels`) and {credit} credit"


@pytest.mark.parametrize("credit", fast_few(["own", "signed_gae", "to_go_statement", "to_go_share", "process"], 1))
def test_a_wider_batch_pays_the_same(tiny_model, tmp_path, credit):
    given = {"generation_kwargs": {"sequence_bias": [[[1], 3.0]]}, "max_completion_length": 24, "max_steps": 1}
    narrow, wide = (
        train(tiny_model, tmp_path, vowels, letters_reward, credit=credit, pad_to_multiple_of=multiple, **given).kept[
            0
        ]
        for multiple in (None, 64)
    )
    assert [tokens.text for tokens, *_ in wide] == [tokens.text for tokens, *_ in narrow]
    assert len({length for *_, length in narrow}) > 3 and {len(row) for _, row, _ in wide} == {64}
    for (_, more, length), (_, row, _) in zip(wide, narrow, strict=True):
        assert more[:length] == pytest.approx(row[:length], abs=1e-5) and not any(more[length:])


@pytest.mark.slow
def test_nothing_that_earns_leaves_the_parents_advantages(tiny_model, tmp_path):
    """`own` with statements that earn nothing is the parent's, token by token."""
    none = train(tiny_model, tmp_path, lambda completion_texts, **columns: [[] for _ in completion_texts], letters_reward,
                 credit="own")  # fmt: skip
    plain = train(tiny_model, tmp_path, None, letters_reward, credit="none")
    for ours, parents in zip(none.kept[0], plain.kept[0], strict=True):
        assert ours[0].text == parents[0].text and set(ours[1][: ours[2]]) == {parents[1]}


def test_what_cannot_work_is_refused(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="credit='to_go' needs statements that are paid"):
        train(tiny_model, tmp_path, None, letters_reward)
    with pytest.raises(ValueError, match="num_generations must be at least 2 and"):
        train(tiny_model, tmp_path, vowels, multi_objective_aggregation="normalize_then_sum")
    with pytest.raises(ValueError, match="credit_scale=1.5 is above 1"):
        FactGRPOConfig(str(tmp_path), bf16=False, credit="to_go", credit_scale=1.5)
    with pytest.raises(ValueError, match="loss_type='vespo' does not go with credit='own'"):
        FactGRPOConfig(str(tmp_path), bf16=False, credit="own", loss_type="vespo")
    with pytest.raises(ValueError, match="must be plain functions"):
        train(tiny_model, tmp_path, ["vowels"])


def test_rlfhs_reward_is_one(tiny_model, tmp_path):
    trainer = train(tiny_model, tmp_path, RLFHReward(Halves(), rate=3), credit="own", max_steps=1)
    assert any(any(advantages) for _, advantages, _ in trainer.kept[0])


@pytest.mark.slow
def test_groups_that_are_spread_over_two_processes(tiny_model, tmp_path):
    found = run_ranks("tests.trainers.test_group_rewards", tiny_model, tmp_path, OMP_NUM_THREADS="1")
    assert_ended_well(found)


def main():
    state = PartialState(cpu=True)
    model, folder = sys.argv[1:]
    kept = train(model, folder, vowels, per_device_train_batch_size=2, gradient_accumulation_steps=1).kept[0]
    everywhere = gather_object([[(tokens, row, length)] for tokens, row, length in kept])
    everywhere = [one[0] for one in everywhere]
    assert len(everywhere) == 4 > len(kept)
    here = state.process_index * len(kept)
    assert_advantages(kept, to_go(paid_rows(everywhere, vowel_points))[here : here + len(kept)])
    state.destroy_process_group()
