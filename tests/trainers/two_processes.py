"""Stock GRPO and FactGRPO with nothing labelled, on two processes (`tests.processes`); an error if they differ."""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import math
import sys

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label
from hf_factuality.errors import JudgingError
from tests.tiny import letters_reward, rows
from tests.trainers.recording import SETTINGS, FactGRPO, StockGRPO, WholeCompletion, same_to_the_last_bit


# Groups of 4 over two processes with 2 rows each: every group is split across them.
DISTRIBUTED = {**SETTINGS, "per_device_train_batch_size": 2}


def run(trainer_class, config_class, model, folder, loss_type, reward=letters_reward, chunks=1, tokens=16, **extra):
    own = {"verify_scope": "completion", "factuality_reward_weight": 0.0, "generation_chunks": chunks}
    own = own if config_class is FactGRPOConfig else {}
    args = config_class(
        output_dir=folder, loss_type=loss_type, **{**DISTRIBUTED, "max_completion_length": tokens}, **own
    )
    trainer = trainer_class(model=model, reward_funcs=reward, args=args, train_dataset=rows(), **extra)
    trainer.skip_padding = False  # which changes the order of sums
    if config_class is FactGRPOConfig:
        trainer.judging.unjudged.limit = 1
    trainer.train()
    return trainer


def label_of(text):
    """From the text alone, so that a mix-up of rows or processes shows."""
    return Label.SUPPORTED if len(text) % 2 else Label.CONTRADICTED


def wrong_signs(trainer):
    """Tokens whose advantage goes against the label of their own completion, and tokens that follow it."""
    wrong = right = 0
    for batch in trainer.batches:
        advantages, ids, mask = batch["advantages"], batch["completion_ids"], batch["completion_mask"].bool()
        for row in range(len(ids)):
            text = trainer.processing_class.decode(ids[row][mask[row]], skip_special_tokens=True)
            sign = 1 if label_of(text) is Label.SUPPORTED else -1
            body = advantages[row][mask[row] & (ids[row] > 4)]  # special tokens carry no label
            wrong += int((body * sign < 0).sum())
            right += int((body * sign > 0).sum())
    return wrong, right


def checked_reward(prompts, completions, verifications, **columns):
    """The reward of all runs, which looks whether the labels that it gets are those of its own completions."""
    texts = [completion[0]["content"] for completion in completions]
    expected = [((len(text), label_of(text)),) if text else () for text in texts]
    found = [tuple((span.end, span.label) for span in verification.spans) for verification in verifications]
    if found != expected:
        raise ValueError(f"labels of other completions: {found} for {expected}")
    return letters_reward(prompts, completions)


checked_reward.__name__ = "letters_reward"  # under which stock GRPO logs its own


class Afterwards(FactGRPO):
    """Judges nothing ahead."""

    def _hand_over(self, *args):
        pass


class Fails(WholeCompletion):
    """On process 1 always; on the other one from a call on."""

    def __init__(self, after=math.inf):
        super().__init__()
        self.after = after

    def verify(self, inputs):
        rank = PartialState().process_index
        if rank == 1 or self.calls >= self.after:
            raise RuntimeError(f"no judge at {rank}")
        return super().verify(inputs)


def main():
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert state.num_processes == 2, f"needs two processes, got {state.num_processes}"
    ours = (FactGRPO, FactGRPOConfig)
    model, folder, *loss_types = sys.argv[1:]
    for loss_type in loss_types:
        stock = run(StockGRPO, GRPOConfig, model, folder, loss_type)
        neutral = run(*ours, model, folder, loss_type, verifier=WholeCompletion())
        differences = same_to_the_last_bit(neutral, stock)
        verifier = WholeCompletion(lambda number, item: label_of(item.completion))
        control = run(*ours, model, folder, loss_type, checked_reward, verifier=verifier)
        if "losses" not in same_to_the_last_bit(control, stock):
            differences.append("the control is equal too")
        wrong, right = wrong_signs(control)
        if wrong or right < 50:
            differences.append(f"{wrong} tokens follow another completion's label, {right} their own")
        print(f"rank {state.process_index} {loss_type}: {differences or 'identical'}", flush=True)
        if differences:
            sys.exit(1)
        state.wait_for_everyone()
    # Rows that end early are judged while the others are generated: what is judged ahead is what is judged afterwards, with
    # groups split over both.
    by_text, found = WholeCompletion(lambda number, item: label_of(item.completion)), []
    for kind in (FactGRPO, Afterwards):
        by_text.calls = 0
        # Long enough for rows to end before the limit.
        found.append(run(kind, FactGRPOConfig, model, folder, loss_types[0], checked_reward, 2, 96, verifier=by_text))
        found[-1].calls = by_text.calls
    ahead, afterwards = (sum(gather_object([trainer.calls])) for trainer in found)
    if (differs := same_to_the_last_bit(*found)) or ahead <= afterwards:
        sys.exit(f"ahead is not afterwards: {differs}, {ahead} and {afterwards} calls")
    print(f"rank {state.process_index}: ahead", flush=True)
    # A verifier that fails on one process only: training goes on, and both count the failures of both.
    half = run(*ours, model, folder, loss_types[0], verifier=Fails())
    failed = [entry["factuality/failed"] for entry in half.state.log_history if "factuality/failed" in entry]
    rows_per_process = DISTRIBUTED["per_device_train_batch_size"] * DISTRIBUTED["gradient_accumulation_steps"]
    if failed and (set(failed) != {rows_per_process} or len(half.losses) != len(stock.losses)):
        sys.exit(f"failures counted: {failed}; steps: {len(half.losses)} of {len(stock.losses)}")
    print(f"rank {state.process_index}: went on", flush=True)
    # One that fails on both later: both stop at the same batch, and each names what it met last.
    try:
        run(*ours, model, folder, loss_types[0], verifier=Fails(after=1))
    except JudgingError as error:
        assert "of 1 batches in a row" in str(error) and "no judge at 1" in str(error), error
        state.wait_for_everyone()
        print(f"rank {state.process_index}: stopped", flush=True)
    state.destroy_process_group()
