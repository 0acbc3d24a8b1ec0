"""A stand-in for lm-evaluation-harness: the names and signatures that are used; a test compares them with the real ones."""

import importlib.machinery
import math
import sys
import types


class Task:
    """Asks what `custom_dataset` holds; the answer to row n is right if the model is `before`, or n is even."""

    OUTPUT_TYPE, VERSION, DATASET_PATH = "multiple_choice", 1.0, "somewhere"

    def __init__(self, config=None):
        self.config = types.SimpleNamespace(**{"validation_split": None, **config})
        self.task_name = config["task"]
        self.eval_docs = config["custom_dataset"](version=1.0)["test"]

    def set_config(self, key, value, update=False):
        setattr(self.config, key, value)

    def doc_to_text(self, doc, doc_to_text=None):
        return doc[{"piqa": "goal", "race": "article"}.get(self.task_name, "question")]

    def doc_to_target(self, doc, doc_to_target=None):
        return doc["choices"]["label"].index(doc["answerKey"]) if "choices" in doc else doc.get("label", 0)

    def doc_to_choice(self, doc, doc_to_choice=None):
        return doc["choices"]["text"] if "choices" in doc else ["x", "y"]


class SQuAD2(Task):
    pass


class TaskManager:
    def __init__(self, verbosity=None, include_path=None, include_defaults=True, metadata=None):
        assert include_path and not include_defaults

    def load(self, task_list):
        return {"tasks": {it["task"]: Task(it) for it in task_list["task"]}}


class HFLM:
    def __init__(self, pretrained, tokenizer=None, batch_size=1):
        self.right = pretrained.name_or_path.endswith("before")
        self.settings = tokenizer, batch_size


asked = []
"""Name of the task and rows of each call."""


def evaluate(lm, task_dict, samples=None, bootstrap_iters=100000):
    ((name, task),) = task_dict["tasks"].items()
    asked.append((name, samples[name]))
    key = "f1" if name in ("squadv2", "drop") else "acc"
    values = [float(lm.right or number % 2 == 0) for number in samples[name]]
    mean = sum(values) / len(values)
    error = (
        math.sqrt(sum((it - mean) ** 2 for it in values) / (len(values) - 1) / len(values))
        if bootstrap_iters
        else "N/A"
    )
    results = {f"{key},none": mean, f"{key}_stderr,none": error, "acc_norm,none": 0.25}
    return {"results": {name: results}, "samples": {name: [{key: it} for it in values]}}


MODULES = {
    "lm_eval": {"evaluate": evaluate, "__version__": "0", "__path__": []},
    "lm_eval.tasks": {"TaskManager": TaskManager, "__file__": "/nowhere/__init__.py", "__path__": []},
    "lm_eval.models.huggingface": {"HFLM": HFLM},
    "lm_eval.api.task": {"ConfigurableTask": Task},
    "lm_eval.tasks.squadv2.task": {"SQuAD2": SQuAD2},
}


def install(monkeypatch):
    """Let `import lm_eval` find this."""
    asked.clear()
    for name, content in MODULES.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
        head, _, last = name.rpartition(".")
        if head in MODULES:
            setattr(sys.modules[head], last, module)
