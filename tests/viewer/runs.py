"""Runs to look at, made up: every completion says its name."""

import json

from hf_factuality.report import StoredCompletion, store_completions
from hf_factuality.spans import Label, LabeledSpan, Verification


S, C, U = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE
HOSTILE = "${alert(1)} {{7*7}} <script>alert(1)</script> <img src=x onerror=alert(1)>"
"""What is a command to a template, to a browser or to nobody."""


def completion(name, *labels, evidence="It says so.", **more):
    """One with a sentence per label."""
    parts, spans, end = [], [], 0
    for number, label in enumerate(labels):
        text = f"Sentence {number} of {name}."
        spans.append(LabeledSpan(end, end + len(text), label, 0.5, evidence=f"{evidence} {HOSTILE}"))
        parts.append(text)
        end += len(text) + 1
    return StoredCompletion(" ".join(parts), Verification(tuple(spans)), f"Question {name}?", **more)


def step(number, rewards):
    """The completions of a step, whose question is the place in the list."""
    labels = {0: (S, S), 1: (C, S), 2: (U,)}
    return [
        completion(str(place), *labels[place % 3], verifier="Lexical" if place % 2 else "NLI", rewards={"reward": reward}, step=number)
        for place, reward in enumerate(rewards)
    ]  # fmt: skip


def make_run(folder, shift=0.0):
    """A folder as a training with a demo leaves it."""
    store_completions(folder / "completions" / "judged_00010.jsonl", step(10, [0.1 + shift, 0.5, None]))
    store_completions(folder / "completions" / "judged_00020.jsonl", step(20, [0.9 + shift, 0.2, 0.3, 0.4]))
    for name, outcomes in (("before", ("wrong", "wrong", "correct")), ("after", ("refused", "correct", "correct"))):
        answers = [
            StoredCompletion(f"Answer {place} {name} {HOSTILE}", None, f"Question {place}?", "Ulm", outcome=outcome)
            for place, outcome in enumerate(outcomes)
        ]
        store_completions(folder / "completions" / f"{name}.jsonl", answers)
    log = [{"step": step, "loss": 1 / step, "reward": step / 20, "epoch": 1.0} for step in (10, 20)]
    lines = [*log, {"step": 20, "train_runtime": 3.0}]
    (folder / "training_log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder
