"""Trainers that note every loss and gradient, so that two runs can be compared to the last bit."""

import torch
from transformers import TrainerCallback
from trl import DPOTrainer, GRPOTrainer

from hf_factuality import FactGRPOTrainer, Label, LabeledSpan, MaskDPOTrainer, Verification


class Recorder(TrainerCallback):
    """Gradients of every parameter, before each optimizer step."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradients.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


class RecordsLosses:
    def __init__(self, *args, **kwargs):
        self.recorder = Recorder()
        self.losses, self.batches = [], []
        super().__init__(*args, callbacks=[self.recorder], **kwargs)

    def _compute_loss(self, model, inputs, *args):
        loss = super()._compute_loss(model, inputs, *args)
        if self.model.training:
            self.losses.append(loss.detach().clone())
            self.batches.append({n: value.clone() for n, value in inputs.items() if isinstance(value, torch.Tensor)})
        return loss

    @property
    def advantages(self) -> list[torch.Tensor]:
        return [batch["advantages"] for batch in self.batches]

    @property
    def logged(self) -> list[dict]:
        """What was logged at each step, but for times."""
        entries = [entry for entry in self.state.log_history if "loss" in entry]
        return [
            {name: repr(value) for name, value in entry.items() if "time" not in name and "seconds" not in name}
            for entry in entries
        ]


class StockGRPO(RecordsLosses, GRPOTrainer):
    pass


class FactGRPO(RecordsLosses, FactGRPOTrainer):
    pass


class StockDPO(RecordsLosses, DPOTrainer):
    pass


class MaskDPO(RecordsLosses, MaskDPOTrainer):
    pass


def record_last_states(trainer) -> list[torch.Tensor]:
    """Filled in training with the states before the head of each pass that learns, whose gradients are kept.

    After the last layer a position has its own logits only.
    """
    seen: list[torch.Tensor] = []

    def note(module, given, states):
        if states.requires_grad:
            states.retain_grad()
            seen.append(states)

    trainer.model.model.norm.register_forward_hook(note)
    return seen


class WholeCompletion:
    """Labels every completion as a whole; `label_of(number, input)` chooses."""

    requires_evidence = False

    def __init__(self, label_of=lambda number, item: Label.NO_FACT):
        self.label_of = label_of
        self.calls = 0

    def verify(self, inputs):
        self.calls += 1
        return [
            Verification(spans=(LabeledSpan(0, len(item.completion), self.label_of(number, item)),))
            for number, item in enumerate(inputs)
        ]


def vowels(completion_texts, **kwargs):
    """A token reward function: 1 for each."""
    return [[(i, i + 1, 1.0) for i, letter in enumerate(text) if letter in "aeiou"] for text in completion_texts]


def fixed_rewards(values):
    def answer(prompts, completions, **kwargs):
        return list(values)

    return answer


class FirstCharacterOfTheFirst(WholeCompletion):
    """Labels one character of one completion and nothing else in it: the control of the neutral setting."""

    def __init__(self, label):
        super().__init__()
        self.label = label

    def verify(self, inputs):
        found = super().verify(inputs)
        if self.calls == 1:
            found[0] = Verification(spans=(LabeledSpan(0, 1, self.label),))
        return found


# Of every run in these tests.
QUIET = dict(
    learning_rate=1e-3, logging_steps=1, report_to="none", save_strategy="no", bf16=False, use_cpu=True,
    gradient_checkpointing=False, disable_tqdm=True,
)  # fmt: skip
SETTINGS = dict(
    per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4, max_completion_length=16,
    max_steps=4, num_iterations=2, beta=0.05, **QUIET,
)  # fmt: skip


def same_to_the_last_bit(ours, stock) -> list[str]:
    """Names what differs between two finished recording trainers; empty if nothing does."""
    differs = []
    if len(ours.losses) != len(stock.losses) or not all(map(torch.equal, ours.losses, stock.losses)):
        differs.append("losses")
    if not any(bool(loss != 0) for loss in stock.losses):
        differs.append("(all losses are 0: nothing was compared)")
    steps = list(zip(ours.recorder.gradients, stock.recorder.gradients, strict=True))
    for step, (a, b) in enumerate(steps):
        assert a.keys() == b.keys()
        differs += [f"gradient of {name} at step {step}" for name in b if not torch.equal(a[name], b[name])]
    if not any(bool(gradient.any()) for _, b in steps for gradient in b.values()):
        differs.append("(all gradients are 0: nothing was compared)")
    for a, b in zip(ours.logged, stock.logged, strict=True):
        differs += [f"logged {name}" for name in b if a.get(name) != b[name]]
    if not stock.logged and stock.is_world_process_zero():  # only it keeps the logs of a distributed run
        differs.append("(nothing logged)")
    return differs
