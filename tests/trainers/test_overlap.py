"""Generation in chunks: what is judged ahead is what is judged afterwards, at the same place, and no thread stays."""

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    Label,
    LabeledSpan,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
    Verification,
)
from hf_factuality.errors import JudgingError
from hf_factuality.generation import LocalChat, ScoreClient
from hf_factuality.methods.klcf.reward import ChecklistReward
from hf_factuality.rewards import RLFHReward, ServedReward
from hf_factuality.verifiers import LLMJudge, SentenceExtractor, VerifierPipeline
from hf_factuality.verifiers.base import Judgement, VerifierInput
from hf_factuality.verifiers.batches import BatchJudge
from hf_factuality.verifiers.guard import GuardedVerifier, UnjudgedBatches
from hf_factuality.verifiers.service import VerificationRequest
from tests.conftest import fast_few
from tests.generation.fake_server import FakeServer
from tests.tiny import letters_reward, rows
from tests.trainers import token_reward_ppo_oracle
from tests.trainers.recording import SETTINGS, FactGRPO, RecordsLosses, same_to_the_last_bit
from tests.trainers.test_resume import differ, weights


LABELS = (Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE)


class Parity:
    """Labels the first characters of a text by the letters in it, and notes which texts came in which call."""

    requires_evidence = False

    def __init__(self):
        self.calls = []

    def verify(self, inputs):
        self.calls.append([item.completion for item in inputs])
        return [
            Verification(spans=(LabeledSpan(0, max(1, len(text) // 2), LABELS[len(text) % 3]),))
            for text in self.calls[-1]
        ]


class LengthJudge:
    """A judge of checklists whose verdict depends on item and answer."""

    def judge(self, inputs):
        return [Judgement(LABELS[(len(item.claim) + len(item.evidence[0])) % 3]) for item in inputs]


class Waits:
    """Goes on with generation only when what was handed over first has been judged, which without overlap is never."""

    def _generate_single_turn(self, *args):
        self.handed = 0
        return super()._generate_single_turn(*args)

    def _hand_over(self, *args):
        super()._hand_over(*args)
        if self.handed == 0:
            self.judged_first.append(self.judged.wait(20))
        self.handed += 1


class Afterwards:
    """Generates in the same way and judges when all are there."""

    def _hand_over(self, *args):
        pass


class AheadFact(Waits, FactGRPO):
    pass


class AfterFact(Afterwards, FactGRPO):
    pass


class RecordingPPO(RecordsLosses, TokenRewardPPOTrainer):
    pass


class AheadPPO(Waits, RecordingPPO):
    pass


class AfterPPO(Afterwards, RecordingPPO):
    pass


@pytest.fixture(scope="module")
def early_model(tiny_model, tmp_path_factory):
    """The tiny model with more tokens that end a completion: most end before the limit, at different places."""
    folder = str(tmp_path_factory.mktemp("early"))
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.generation_config.eos_token_id = [model.config.eos_token_id, *range(200, 260)]
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


def fact(kind, model, folder, verifier=None, chunks=4, rewards=letters_reward, data=None, **settings):
    config = {"verify_scope": "completion", "generation_chunks": chunks, **SETTINGS, **settings}
    verifier = verifier or Parity()
    trainer = kind(
        model=model, reward_funcs=rewards, args=FactGRPOConfig(str(folder), **config), verifier=verifier,
        train_dataset=data or rows(),
    )  # fmt: skip
    return trainer


def tell_when_judged(trainer, verifier):
    """Tell the trainer when the verifier has answered its first call of a batch."""
    trainer.judged, trainer.judged_first, verify = threading.Event(), [], verifier.verify

    def telling(inputs):
        found = verify(inputs)
        trainer.judged.set()
        return found

    verifier.verify = telling


def ahead_threads():
    return [thread for thread in threading.enumerate() if thread.name == "verifier ahead"]


def assert_no_thread_stays():
    end = time.monotonic() + 20
    while ahead_threads() and time.monotonic() < end:
        time.sleep(0.01)
    assert not ahead_threads()


def with_checklists():
    data = rows()
    return data.add_column("checklist", [[f"Person {number} was born.", "x" * number] for number in range(len(data))])


def test_ahead_is_afterwards_to_the_last_bit(early_model, tmp_path):
    """And with transformers both are what one chunk gives, which is TRL."""
    found, calls = {}, {}
    for kind in (AheadFact, AfterFact, FactGRPO):
        verifier, checklist = Parity(), ChecklistReward(LengthJudge())
        rewards = [letters_reward, checklist.recall, checklist.precision]
        chunks = 1 if kind is FactGRPO else 4
        trainer = fact(kind, early_model, tmp_path, verifier, chunks, rewards, data=with_checklists())
        if kind is AheadFact:
            tell_when_judged(trainer, verifier)
        trainer.train()
        found[kind], calls[kind] = trainer, verifier.calls
        assert_no_thread_stays()
    ahead = found[AheadFact]
    assert ahead.judged_first == [True, True]
    assert len({len(ids) for batch in ahead.batches for ids in trimmed(batch)}) > 3
    for other in (AfterFact, FactGRPO):
        assert same_to_the_last_bit(ahead, found[other]) == []
        assert list(map(trimmed, ahead.batches)) == list(map(trimmed, found[other].batches))
    assert {"rewards/checklist_recall/mean", "factuality/mean"} <= ahead.logged[0].keys()
    # Each completion is judged once: at least a chunk of 2 that has ended, then the rest; or the batch of 8.
    assert len(calls[AheadFact]) > 4 and {len(call) for call in calls[FactGRPO]} == {8}
    assert sorted(sum(calls[AheadFact], [])) == sorted(sum(calls[FactGRPO], []))


def trimmed(batch):
    return [
        ids[mask.bool()].tolist() for ids, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    ]


@pytest.mark.slow
def test_a_reward_model_on_a_server_is_asked_ahead(early_model, tmp_path):
    found, asked = [], []
    for kind in (AheadFact, AfterFact):
        was_asked = threading.Event()

        def reply(prompt, body, was_asked=was_asked):
            was_asked.set()
            return [float(len(prompt) % 7)]

        with FakeServer(reply) as server:
            reward = ServedReward(ScoreClient(server.url, "fake", cache=False))
            trainer = fact(kind, early_model, tmp_path, rewards=[reward])
            trainer.judged, trainer.judged_first = was_asked, []
            trainer.train()
        found.append(trainer)
        asked.append(server.answered)
    ahead, after = found
    assert ahead.judged_first == [True, True] and asked[0] == asked[1]
    assert same_to_the_last_bit(ahead, after) == [] and float(ahead.logged[0]["rewards/general/std"]) > 0
    assert_no_thread_stays()


@pytest.mark.slow
def test_token_rewards_of_ppo_are_judged_and_rated_ahead(early_model, tmp_path):
    found, rated = {}, {}
    for kind in (AheadPPO, AfterPPO):
        verifier, rated[kind] = Parity(), []

        def rate(inputs, verifications, seen=rated[kind]):
            seen.append([item.completion for item in inputs])
            return [[1 + len(item.completion) % 5] for item in inputs]

        settings = {**token_reward_ppo_oracle.SETTINGS, "per_device_train_batch_size": 4, "generation_chunks": 2}
        args = TokenRewardPPOConfig(str(tmp_path), **settings)
        trainer = kind(early_model, RLFHReward(verifier, rate=rate), None, args, rows())
        if kind is AheadPPO:
            tell_when_judged(trainer, verifier)
        trainer.train()
        found[kind] = trainer
        assert_no_thread_stays()
    assert found[AheadPPO].judged_first == [True, True]
    assert same_to_the_last_bit(found[AheadPPO], found[AfterPPO]) == []
    assert sorted(sum(rated[AheadPPO], [])) == sorted(sum(rated[AfterPPO], []))
    assert len(rated[AheadPPO]) > len(rated[AfterPPO]) > 0


@pytest.mark.slow
def test_one_chunk_hands_nothing_over(early_model, tmp_path, monkeypatch):
    monkeypatch.setattr(BatchJudge, "ahead", None)
    fact(FactGRPO, early_model, tmp_path, chunks=1, max_steps=1).train()
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        fact(FactGRPO, early_model, tmp_path, max_steps=1).train()


@pytest.mark.slow
def test_a_stopped_run_goes_on_with_the_same_completions(early_model, tmp_path):
    steps = dict(save_strategy="steps", save_steps=1, max_steps=4)
    whole = fact(FactGRPO, early_model, tmp_path / "whole", **steps)
    whole.train()
    for stop in (1, 2):  # inside a generation batch, and at its end
        again = fact(FactGRPO, early_model, tmp_path / "again", **{**steps, "save_strategy": "no"})
        torch.rand(99)
        again.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{stop}"))
        assert differ(weights(again), weights(whole)) == []


@pytest.mark.parametrize("eval_rows", fast_few([2, 3], 1))
def test_an_evaluation_is_cut_too(early_model, tmp_path, eval_rows):
    verifier = Parity()
    config = dict(per_device_eval_batch_size=4, num_generations_eval=2)
    trainer = fact(FactGRPO, early_model, tmp_path, verifier, chunks=2, **config)
    figures = trainer.evaluate(rows().select(range(eval_rows)))
    assert sum(map(len, verifier.calls)) == 2 * eval_rows
    assert figures["eval_factuality/rows_checked"] == 1.0
    assert_no_thread_stays()


# Failures


class Down(Parity):
    def verify(self, inputs):
        raise RuntimeError("judge down")


@pytest.mark.parametrize("kind", fast_few([FactGRPO, AfterFact], 1))
def test_a_verifier_that_is_down_stops_the_run_with_the_same_error(early_model, tmp_path, kind):
    trainer = fact(kind, early_model, tmp_path, Down())
    with pytest.raises(JudgingError, match="Down judged none of the first 8 completions.*judge down"):
        trainer.train()
    assert_no_thread_stays()


def test_a_verifier_that_hangs_costs_two_time_outs(early_model, tmp_path):
    """After two time-outs in a row the rest of the batch is not sent, whichever chunk it is in."""

    class Hangs(Parity):
        def verify(self, inputs):
            super().verify(inputs)
            time.sleep(1)
            return []

    verifier = Hangs()
    trainer = fact(FactGRPO, early_model, tmp_path, verifier, verifier_timeout=0.1)
    with pytest.raises(
        JudgingError,
        match="judged none of the first 8 completions.*(not sent: .* timed out 2 times|no answer within 0.1 s)",
    ):
        trainer.train()
    assert len(verifier.calls) == 2
    assert_no_thread_stays()


@pytest.mark.parametrize("error", fast_few([RuntimeError, KeyboardInterrupt], 1))
def test_an_end_inside_generation_leaves_no_thread_and_asks_nothing_more(early_model, tmp_path, error):
    verifier, release = Parity(), threading.Event()
    verify = verifier.verify
    verifier.verify = lambda inputs: (release.wait(20), verify(inputs))[1]

    class Ends(FactGRPOTrainer):
        def _hand_over(self, *args):
            super()._hand_over(*args)
            if len(self._decoded) >= 4:  # the first is being judged
                raise error("enough")

    trainer = fact(Ends, early_model, tmp_path, verifier)
    with pytest.raises(error, match="enough"):
        trainer.train()
    release.set()
    assert_no_thread_stays()
    assert len(verifier.calls) <= 1


def test_ctrl_c_ends_the_wait_for_a_verifier_that_hangs():
    release, verifier = threading.Event(), Parity()
    verifier.verify = lambda inputs: release.wait(30)
    judge = BatchJudge(GuardedVerifier(verifier, timeout=None), UnjudgedBatches())
    judge.ahead(batch_of("a"), [0])
    pressed = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        judge.judge(batch_of("a"))
    assert time.monotonic() - started < 10
    release.set()
    pressed.join()
    assert_no_thread_stays()


def batch_of(*texts):
    return [VerificationRequest(VerifierInput(text)) for text in texts]


def test_only_answers_to_the_same_question_count():
    verifier = Parity()
    judge = BatchJudge(GuardedVerifier(verifier), UnjudgedBatches())
    judge.ahead(batch_of("bb", "a"), [1, 0])
    judge.ahead(batch_of("ccc"), [2])
    asked = batch_of("a", "bb", "other", "dddd")
    judged = judge.judge(asked)
    assert [one.row for one in judged] == asked
    assert [one.found.spans[0].label for one in judged] == [LABELS[n % 3] for n in (1, 2, 5, 4)]
    assert sorted(sum(verifier.calls, [])) == ["a", "bb", "ccc", "dddd", "other"]
    # Nothing is left of it for the next batch.
    assert [one.row for one in judge.judge(asked[:1])] == asked[:1] and verifier.calls[-1] == ["a"]
    assert judge.judge([]) == []


def test_a_call_that_is_left_behind_ends_before_the_next():
    """Else they would share the count of time-outs, and the time limit where there is one."""
    verifier, first, now = Parity(), threading.Event(), []
    verify = verifier.verify

    def alone(inputs):
        now.append(inputs)
        first.set()
        time.sleep(0.3)
        assert len(now) == 1
        return (now.pop(), verify(inputs))[1]

    verifier.verify = alone
    judge = BatchJudge(GuardedVerifier(verifier, timeout=None), UnjudgedBatches())
    judge.ahead(batch_of("a"), [0])
    first.wait(20)
    (judged,) = judge.judge(batch_of("other"))
    assert judged.found.error is None and verifier.calls == [["a"], ["other"]]


def test_an_error_on_the_thread_rises_where_the_batch_is_judged():
    def broken(judged):
        raise LookupError("no rating")

    judge = BatchJudge(GuardedVerifier(Parity()), UnjudgedBatches())
    judge.then = broken
    judge.ahead(batch_of("a"), [0])
    time.sleep(0.1)
    with pytest.raises(LookupError, match="no rating"):
        judge.judge(batch_of("a"))
    assert_no_thread_stays()


# What cannot overlap


def test_a_model_of_this_process_cannot_judge_meanwhile(tiny_model, tmp_path):
    verifier = VerifierPipeline(SentenceExtractor(), LLMJudge(LocalChat()))
    with pytest.raises(
        ValueError, match="generation_chunks=4: the verifier of 'factuality' asks a model of this process"
    ):
        fact(FactGRPO, tiny_model, tmp_path, verifier)
    checklist = ChecklistReward(LLMJudge(LocalChat()))
    with pytest.raises(ValueError, match="verifier of 'checklist_recall' asks a model of this process"):
        fact(FactGRPO, tiny_model, tmp_path, rewards=[checklist.recall])
    settings = {**token_reward_ppo_oracle.SETTINGS, "generation_chunks": 3}
    with pytest.raises(ValueError, match="generation_chunks=3 without a reward that judges ahead"):
        TokenRewardPPOTrainer(
            tiny_model, None, letters_reward, TokenRewardPPOConfig(str(tmp_path), **settings), rows()
        )


# vLLM's server, with TRL's own `generate` and a client that is none: weights reach a real one by NCCL alone


def test_a_server_gets_each_prompt_once_and_the_weights_once_a_step(tiny_model, tmp_path, monkeypatch):
    vllm_generation = pytest.importorskip("trl.generation.vllm_generation")
    verifier = Parity()
    config = dict(generation_chunks=2, num_generations=2, num_iterations=1, max_steps=2)
    trainer = fact(
        FactGRPO,
        tiny_model,
        tmp_path,
        verifier,
        chunks=2,
        **{k: v for k, v in config.items() if k != "generation_chunks"},
    )
    requests, syncs = [], []

    class Client:
        def generate(self, prompts, n, **sampling):
            requests.append(prompts)
            ids = [
                [5 + (number * 7 + k * 3 + len(requests)) % 90, 6 + k]
                for number in range(len(prompts))
                for k in range(n)
            ]
            logprobs = [[[-1.0]] * len(each) for each in ids]
            return {"prompt_ids": prompts, "completion_ids": ids, "logprobs": logprobs}

    own = SimpleNamespace(
        mode="server", accelerator=trainer.accelerator, vllm_client=Client(), sync_weights=lambda: syncs.append(1),
        enable_sleep_mode=False, structured_outputs_regex=None, generation_kwargs={}, logprobs=0,
        **dict.fromkeys(("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_completion_length")),
    )  # fmt: skip
    own.generate = lambda **kwargs: vllm_generation.VLLMGeneration.generate(own, **kwargs)
    trainer.use_vllm = trainer.args.use_vllm = True
    trainer.args.vllm_mode, trainer.vllm_generation, trainer._last_loaded_step = "server", own, -1
    trainer.vllm_importance_sampling_correction = False
    trainer.train()
    assert [len(prompts) for prompts in requests] == [2] * 4 and len(syncs) == 2
    for first, second in zip(requests[::2], requests[1::2], strict=True):
        assert len({tuple(ids) for ids in first + second}) == 4  # a generation batch is 4 prompts, each sent once
    assert len(sum(verifier.calls, [])) == 16 and all(len(call) in (4, 8) for call in verifier.calls)
