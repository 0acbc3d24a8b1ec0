"""The command in processes of its own: killed at random moments, and with vLLM."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from datasets import Dataset

from hf_factuality.cli import main
from tests.conftest import REPOSITORY
from tests.data.test_build_preferences import questions


KILLED = """
import sys
sys.path.insert(0, {root!r})
import hf_factuality.verifiers.registry, hf_factuality.data.build, transformers, torch
from hf_factuality.cli import main
print("ready", flush=True)
status = main({argv!r})
print("status", status, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("command", "dataset"), [("preferences", "pairs"), ("checklists", "checklists")])
def test_kill_9_of_the_command_at_random_moments(tmp_path, tiny_model, command, dataset):
    """Three times while a model of this process answers; then the dataset is that of an uninterrupted run."""
    people = [f"Person{number}" for number in range(40)]
    file = questions(tmp_path, people)

    def argv(out):
        return [
            f"build-{command}", file, "--model", tiny_model, "--device", "cpu", "--dtype", "float32", "--num_samples", "4",
            "--max_new_tokens", "40", "--verifier", "tests.data.test_build_preferences:Initial", "--out", str(out),
            "--questions_per_batch", "2",
        ]  # fmt: skip

    assert main(argv(tmp_path / "whole")) == 0
    script = KILLED.format(root=str(REPOSITORY), argv=argv(tmp_path / "killed"))
    lines = tmp_path / "killed" / "responses.jsonl"
    rng, done, at = random.Random(0), 0, []
    # Lines that must be there before the kill, so that each comes in another part of the run.
    for least in (1, 13, 25):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        while not lines.exists() or lines.read_bytes().count(b"\n") < least:
            assert process.poll() is None, "ended before it was killed"
            time.sleep(0.001)
        time.sleep(rng.uniform(0.0, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = lines.read_bytes().count(b"\n")
        assert done < now < 40
        done = now
        at.append(now)
    process = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.splitlines()[-1] == "status 0"
    print("killed after questions:", at)
    for name in (f"{dataset}.parquet", "report.json", "README.md"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(Dataset.from_parquet(str(tmp_path / "whole" / f"{dataset}.parquet"))) > 9
    # Nothing was sampled twice: one line per question.
    keys = [json.loads(line)["id"] for line in lines.read_bytes().splitlines()]
    assert sorted(keys) == sorted(people)


VLLM = """
import json, sys
from hf_factuality.data.sampling import SamplingConfig, VLLMSampler
if __name__ == "__main__":
    sampler = VLLMSampler({model!r}, SamplingConfig(num_samples=4, max_new_tokens=8), model_kwargs=dict(
        enforce_eager=True, dtype="float32", max_model_len=256, max_num_seqs=16, seed=0))
    prompts = [[dict(role="user", content=text)] for text in ("Hello", "Who was she?")]
    found = [[[[r.text, r.complete] for r in rows] for rows in sampler.sample(prompts, seed)] for seed in (1, 1, 2)]
    print("FOUND " + json.dumps(dict(found=found, settings=sampler.describe())))
"""


@pytest.mark.vllm
def test_vllm_sampler(tmp_path, tiny_model):
    """In the Python that has vLLM: the same seed gives the same responses, another one others."""
    python = os.environ.get("HF_FACTUALITY_VLLM_PYTHON") or str(REPOSITORY / ".venv-vllm" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("needs vLLM: make test-vllm, or HF_FACTUALITY_VLLM_PYTHON=<python that has it>")
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # vLLM's attention on a CPU has no heads of 16 numbers, as the tiny model has.
    config = LlamaConfig(**{**LlamaConfig.from_pretrained(tiny_model).to_dict(), "hidden_size": 64, "head_dim": 32})
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
    script = tmp_path / "sample.py"  # a file, since vLLM starts processes that import it
    script.write_text(VLLM.format(model=str(tmp_path / "model")))
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run([python, str(script)], capture_output=True, text=True, env=env, timeout=500)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")] or [done.stderr[-3000:]]
    found = json.loads(line.removeprefix("FOUND "))
    first, again, other = found["found"]
    assert first == again != other and [len(rows) for rows in first] == [4, 4]
    assert any(not finished for rows in first for _, finished in rows)
    assert len({text for rows in first for text, _ in rows}) > 4
    assert found["settings"]["model"] == "model" and found["settings"]["sampler"] == "vllm"
