"""A number that is not finite ends a run before a step is taken on it; on several processes, all of them."""

import itertools
import json
import math

import pytest

from hf_factuality import FactGRPOConfig
from hf_factuality.errors import NonFiniteError
from tests.processes import run_ranks
from tests.tiny import rows
from tests.trainers.finite_runs import FAULTS, make
from tests.trainers.recording import SETTINGS, FactGRPO


NAMES = {
    "reward": "a reward of answer",
    "number": "a reward of token_rewards",
    "span": "a reward of token_rewards",
    "loss": "the loss",
    "critic's loss": "the loss",
    "gradient": "the norm of the gradients",
    "critic's gradient": "the norm of the critic's gradients",
    "value": "a value of the critic",
}


QUICK = [("grpo", "reward"), ("dpo", "loss"), ("ppo", "critic's loss")]


@pytest.mark.parametrize(
    ("kind", "fault"), [pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow) for case in FAULTS]
)
def test_no_step_is_taken_and_the_batch_is_saved(tiny_model, tmp_path, kind, fault):
    trainer = make(kind, fault, tiny_model, tmp_path)
    path = tmp_path / "not_finite_step1_process0.jsonl"
    with pytest.raises(NonFiniteError, match=f"{NAMES[fault]} is not a finite number after 1 steps") as stop:
        trainer.train()
    assert str(path) in str(stop.value)
    assert trainer.state.global_step == 1 and trainer.weights.moved() == []
    saved = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(saved) >= 2
    for row in saved:
        if kind == "dpo":
            assert set(row) == {"chosen", "rejected"} and all("Who is person" in text for text in row.values())
        else:
            assert "Where was person" in row["prompt"] and row["completion"] and "answer" in row["rewards"]
    if fault == "reward":
        assert [row["rewards"]["answer"] for row in saved].count("inf") == 1
    if fault in ("number", "span"):
        assert [row["rewards"]["token_rewards"] for row in saved].count("inf") == 1


def test_what_a_function_does_not_know_is_no_fault(tiny_model, tmp_path):
    trainer = make("grpo", "", tiny_model, tmp_path)
    trainer.reward_funcs[0] = lambda prompts, completions, **kwargs: [None, 1.0, math.nan, 0.0]
    trainer.model.train()
    rewards = trainer._generate_and_score_completions([trainer.train_dataset[0]] * 4)["rewards/answer"]
    assert rewards.isnan().tolist() == [True, False, True, False] and not list(tmp_path.glob("not_finite*"))


def test_a_batch_that_cannot_be_written_still_stops_the_run(tiny_model, tmp_path):
    trainer = make("grpo", "reward", tiny_model, tmp_path)
    trainer.args.output_dir = str(tmp_path / "file")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NonFiniteError, match="could not be written"):
        trainer.train()


def test_a_run_that_learns_nothing_says_so_once(tiny_model, tmp_path, monkeypatch, caplog):
    """Rewards that are equal within every group, as of a reward that asks for tags that no answer has."""
    monkeypatch.setattr("hf_factuality.trainers.base.IDLE_STEPS", 2)
    settings = SETTINGS | {"beta": 0.0, "num_iterations": 1}
    config = FactGRPOConfig(str(tmp_path), credit="none", factuality_reward_weight=0.0, **settings)

    def pays(values):
        def paid(prompts, completions, **columns):
            return [next(values) for _ in completions]

        return paid

    def run(values):
        caplog.clear()
        FactGRPO(tiny_model, pays(values), config, rows(4), verifier=None).train()
        return [record.getMessage() for record in caplog.records if "nothing is learnt" in record.getMessage()]

    (said,) = run(itertools.repeat(1.0))
    assert said.startswith("the gradient was 0 in 2 steps in a row") and "log_completions=True" in said
    assert run(itertools.cycle([0.0, 1.0])) == []


def test_a_critic_that_learns_alone_is_no_idle_run(tiny_model, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("hf_factuality.trainers.base.IDLE_STEPS", 2)
    trainer = make("ppo", "", tiny_model, tmp_path)
    trainer.args.freezing_actor_steps = trainer.args.max_steps
    trainer.train()
    assert "nothing is learnt" not in caplog.text and trainer.state.global_step >= 2


@pytest.mark.slow
def test_two_processes_stop_together_where_one_meets_it(tiny_model, tmp_path):
    done = run_ranks("tests.trainers.finite_runs", tiny_model, tmp_path)
    assert any(each.returncode for each in done)
    for number, (kind, fault) in enumerate(FAULTS):
        for rank in (0, 1):
            said = (tmp_path / str(number) / f"stopped{rank}.txt").read_text()
            assert said.startswith(f"[] {NAMES[fault]} is not a finite number after 1 steps"), (kind, said)
            # Gradients are averaged before their norm is taken, so both meet it there.
            faulty = [0, 1] if "gradient" in fault else [1]
            assert f"on process {faulty} of 2" in said
            path = tmp_path / str(number) / f"not_finite_step1_process{rank}.jsonl"
            assert path.is_file() == (str(path) in said) == (rank in faulty)
