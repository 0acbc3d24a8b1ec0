"""Verifiers that fail, hang or wait."""

import threading
import time

from hf_factuality import load_verifier
from hf_factuality.spans import Label, LabeledSpan, Verification


class Failing:
    requires_evidence = False

    def verify(self, inputs):
        raise RuntimeError("no file /home/someone/secret/weights.bin, token hf_abcdefghijklmnopqrstuvwxyz")


class FailsOnBad:
    """Fails on completions with the word "bad"."""

    requires_evidence = False

    def verify(self, inputs):
        if any("bad" in it.completion for it in inputs):
            raise RuntimeError("bad")
        return [Verification((LabeledSpan(0, len(it.completion), Label.SUPPORTED, 1.0),)) for it in inputs]


class Hanging:
    """Hangs in Python, where it can be ended."""

    requires_evidence = False

    def __init__(self, ends=True):
        self.ends, self.release, self.calls = ends, threading.Event(), 0

    def verify(self, inputs):
        if not any("hang" in it.completion for it in inputs):
            return [Verification((LabeledSpan(0, 1, Label.SUPPORTED, 1.0),)) for it in inputs]
        self.calls += 1
        while not self.release.is_set():
            if self.ends:
                time.sleep(0.01)
            else:
                self.release.wait(60)  # one call into C
        return [Verification() for _ in inputs]


class Gated:
    """The lexical verifier, once it is let through; counts its calls."""

    def __init__(self):
        self.lexical, self.gate, self.entered, self.sizes = load_verifier("lexical"), threading.Event(), 0, []

    def verify(self, inputs):
        self.entered += 1
        self.sizes.append(len(inputs))
        assert self.gate.wait(60)
        return self.lexical.verify(inputs)


class Slow:
    """Takes a second."""

    requires_evidence = False

    def verify(self, inputs):
        time.sleep(1.0)
        return [Verification((LabeledSpan(0, len(it.completion), Label.SUPPORTED, 1.0),)) for it in inputs]


class SlowRows:
    """Takes a tenth of a second for each row."""

    requires_evidence = False

    def __init__(self):
        self.sizes = []

    def verify(self, inputs):
        self.sizes.append(len(inputs))
        time.sleep(0.1 * len(inputs))
        return [Verification((LabeledSpan(0, len(it.completion), Label.SUPPORTED, 1.0),)) for it in inputs]
