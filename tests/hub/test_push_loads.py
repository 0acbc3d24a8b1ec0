"""What was pushed is loaded back by the libraries themselves, in a process that knows only this Hub.

`tests/metrics/test_push.py` does so with a metric.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from datasets import Dataset

from hf_factuality.data.preferences import push_pairs
from hf_factuality.hub.push import push
from hf_factuality.verifiers import LexicalVerifier
from tests.hub.push_inputs import REMAINS, write
from tests.tiny import save_tiny_model


ROWS = [{"prompt": "Who?", "chosen": "Ada.", "rejected": "Bob."}, {"prompt": "玛丽?", "chosen": "a", "rejected": "b"}]


@pytest.mark.slow
def test_a_model_a_tokenizer_a_verifier_and_pairs(hub, tmp_path):
    from transformers import AutoModelForCausalLM

    folder, pairs = Path(save_tiny_model(tmp_path / "tiny")), tmp_path / "pairs"
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20kB")
    (folder / "model.safetensors").unlink()
    write(folder, REMAINS)
    push(folder, "someone/tiny")
    LexicalVerifier(threshold=0.7).push_to_hub("someone/judge", private=True)
    pairs.mkdir()
    Dataset.from_list(ROWS).to_parquet(pairs / "pairs.parquet")
    header = "---\nconfigs:\n- config_name: default\n  data_files: pairs.parquet\n---\n"
    write(pairs, {"README.md": header.encode(), "responses.jsonl": b"{}"})
    push_pairs(pairs, "someone/pairs", private=True)
    assert set(hub.repos["dataset", "someone/pairs"].files()) == {"pairs.parquet", "README.md"}
    code = f"""
        import torch
        from datasets import load_dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from hf_factuality.hub.cards.settings import dataset_origin
        from hf_factuality.verifiers import VerifierInput, VerifierPipeline
        there, here = (AutoModelForCausalLM.from_pretrained(name) for name in ("someone/tiny", {str(folder)!r}))
        state = here.state_dict()
        print(len(state), all(torch.equal(tensor, state[name]) for name, tensor in there.state_dict().items()))
        tokenizer = AutoTokenizer.from_pretrained("someone/tiny")
        print(tokenizer.apply_chat_template([{{"role": "user", "content": "Who?"}}], tokenize=False))
        pipeline = VerifierPipeline.from_pretrained("someone/judge")
        (found,) = pipeline.verify([VerifierInput("Ada was born in Leeds.", evidence=("Ada was born in Leeds.",))])
        print([span.label.value for span in found.spans], pipeline.judge.threshold)
        pairs = load_dataset("someone/pairs", split="train")
        print(pairs.to_list())
        print(*dataset_origin(pairs.filter(lambda row: True).map(lambda row: {{"more": 1}})))
    """
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code)]
    environment = hub.environment(tmp_path / "home")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    state, *printed = done.stdout.splitlines()
    assert state.endswith(" True") and int(state.split()[0]) > 10
    commit = hub.repos["dataset", "someone/pairs"].refs["main"]
    assert printed == ["<|user|>Who?<|end|>", "['supported'] 0.7", str(ROWS), f"someone/pairs {commit}"]
    assert hub.repos["model", "someone/tiny"].private and hub.repos["model", "someone/judge"].private
    shards = hub.count("GET", r"/someone/tiny/resolve/\w+/model-\d+-of-\d+.safetensors")
    assert shards == sum(1 for name in hub.repos["model", "someone/tiny"].files() if name.endswith("rs")) > 2
