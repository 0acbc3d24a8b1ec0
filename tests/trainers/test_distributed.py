"""Two processes train what one trains: every trainer, whole and with adapters, under DDP and ZeRO-3.

`python -m tests.trainers.test_distributed` prints the table of docs/scaling.md.
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from hf_factuality.checkpoints.merge import merge
from tests.processes import assert_ended_well, run_ranks
from tests.trainers.distributed import METHODS, STEPS, run, save_model


pytestmark = [pytest.mark.slow, pytest.mark.distributed]
TOLERANCE = 1e-4
"""Of the way that a tensor went, and of a logged figure: sums over processes have another order, nothing else differs."""
ZERO3 = {
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": False},
    "train_micro_batch_size_per_gpu": "auto", "train_batch_size": "auto", "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto", "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
}  # fmt: skip
CASES = [(method, way, peft) for method in METHODS for way in ("ddp", "zero3") for peft in ("full", "lora")]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("distributed") / "model"
    save_model(path)
    return path


@pytest.fixture(scope="module")
def alone(model, tmp_path_factory):
    """What one process comes to, by method and kind of weights."""
    found = {}

    def of(method, peft):
        if (method, peft) not in found:
            folder = tmp_path_factory.mktemp("alone")
            trainer = run(method, str(model), folder, 1, peft == "lora")
            found[method, peft] = (weights(folder, model, peft), critic(folder), losses(trainer.state.log_history))
        return found[method, peft]

    return of


def weights(folder, model, peft):
    """Of the last checkpoint, as `hf-factuality merge` makes a model of it."""
    checkpoint = Path(folder) / f"checkpoint-{STEPS}"
    out = Path(folder) / "merged"
    merge(checkpoint, out, base_model=model if peft == "lora" else None)
    merged, report = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return dict(merged.named_parameters())


def critic(folder):
    path = Path(folder) / f"checkpoint-{STEPS}" / "critic"
    if (path / "config.json").is_file():
        return dict(AutoModelForTokenClassification.from_pretrained(path, num_labels=1).named_parameters())
    if (path / "value_head.pt").is_file():
        return torch.load(path / "value_head.pt", weights_only=True)
    return {}


def losses(log):
    """Figures of every step that do not depend on time; sampled tokens are given, so that all must agree."""
    kept = ("loss", "grad_norm", "reward", "kl", "value/loss", "value/grad_norm", "rewards/chosen", "rewards/margins",
            "completions/mean_length", "factuality/mean", "factuality/tokens_labelled")  # fmt: skip
    return [{name: entry[name] for name in kept if name in entry} for entry in log if "loss" in entry]


def differences(found, expected, start):
    """Largest difference of weights (of the way that a tensor went), and of logged figures."""
    apart = 0.0
    for name, tensor in expected.items():
        way = (tensor - start.get(name, torch.zeros_like(tensor))).norm()
        error = (found[name] - tensor).norm()
        assert found.keys() == expected.keys()
        apart = max(apart, (error / way).item() if way else float(error > 0))
    return apart


FSDP2 = {
    "ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true", "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT", "TRAINS_ON": "cuda",
}  # fmt: skip


def compare(method, way, peft, model, folder, expected, asked_at=None):
    flags, environment = [], {"fsdp2": FSDP2}.get(way, {"DS_ACCELERATOR": "cpu"})
    if way == "zero3":
        pytest.importorskip("deepspeed")
        Path(folder, "zero3.json").write_text(json.dumps(ZERO3), encoding="utf-8")
        flags = [Path(folder, "zero3.json")]
    out = Path(folder, "two")
    command = ("tests.trainers.distributed", method, model, out, peft, *flags)
    if asked_at is not None:
        ended = run_ranks(*command, **environment, ASKED_AT=str(asked_at))
        assert [rank.returncode for rank in ended] == [143, 143], ended
        assert [path.name for path in out.glob("checkpoint-*")] == [f"checkpoint-{asked_at + 1}"]
    assert_ended_well(run_ranks(*command, **environment))
    policy, values, log = expected
    start = dict(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters())
    apart = differences(weights(out, model, peft), policy, start)
    begin = {name: start[name] for name in values if name in start}
    critics = differences(critic(out), values, begin) if values else None
    ours = losses(json.loads(Path(out, "log.json").read_text(encoding="utf-8")))
    assert len(ours) == len(log) == STEPS and [set(entry) for entry in ours] == [set(entry) for entry in log]
    figures = max(
        abs(float(one[name]) - float(other[name])) / max(abs(float(other[name])), 1e-2)
        for one, other in zip(ours, log, strict=True)
        for name in other
    )
    return apart, critics, figures


@pytest.mark.parametrize(("method", "way", "peft"), CASES)
def test_two_processes_train_what_one_trains(model, alone, tmp_path, method, way, peft):
    for difference in compare(method, way, peft, model, tmp_path, alone(method, peft)):
        assert difference is None or difference <= TOLERANCE, (method, way, peft, difference)


@pytest.mark.parametrize(("method", "way"), [("rlfh", "zero3"), ("mask_dpo", "zero3"), ("credit", "ddp")])
def test_one_of_two_is_asked_to_end_and_both_go_on_later(model, alone, tmp_path, method, way):
    """By a scheduler, in the second step; the model, its optimizer and the critic are split (zero3)."""
    for difference in compare(method, way, "full", model, tmp_path, alone(method, "full"), asked_at=1):
        assert difference is None or difference <= TOLERANCE, (method, way, difference)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs: on CPUs accelerate makes DDP of FSDP")
@pytest.mark.parametrize("method", METHODS)
def test_fsdp2_trains_what_one_process_trains(model, tmp_path, monkeypatch, method):
    monkeypatch.setenv("TRAINS_ON", "cuda")
    (tmp_path / "one").mkdir()
    trainer = run(method, str(model), tmp_path / "one", 1, False)
    found = weights(tmp_path / "one", model, "full"), critic(tmp_path / "one"), losses(trainer.state.log_history)
    for difference in compare(method, "fsdp2", "full", model, tmp_path, found):
        assert difference is None or difference <= 10 * TOLERANCE, (method, difference)


def test_another_reward_is_another_model(model, alone):
    """The control: what is compared would show it."""
    policy, _, log = alone("fspo", "full")
    other, _, other_log = alone("credit", "full")
    start = dict(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).named_parameters())
    assert differences(other, policy, start) > 100 * TOLERANCE and log != other_log


def main():
    print("| trainer | weights | processes | policy | critic | logged |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        save_model(model)
        for number, (method, way, peft) in enumerate(CASES):
            own = Path(folder, str(number))
            (own / "one").mkdir(parents=True)
            trainer = run(method, str(model), own / "one", 1, peft == "lora")
            expected = (weights(own / "one", model, peft), critic(own / "one"), losses(trainer.state.log_history))
            apart, critics, figures = compare(method, way, peft, model, own, expected)
            print(f"| {method} | {peft} | {way} | {apart:.1e} | {'' if critics is None else f'{critics:.1e}'} "
                  f"| {figures:.1e} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
