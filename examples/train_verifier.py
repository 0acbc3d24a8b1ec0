"""A judge of your own: an encoder that tells whether evidence supports a claim, calibrated, saved as a verifier pipeline.

python examples/train_verifier.py                       # a small encoder on made-up passages, minutes on a CPU
python examples/train_verifier.py --config recipes/verifier/deberta-v3-base.yaml \
    --train_files claims.jsonl --passage_files passages.jsonl --eval_files held_out.jsonl
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("verifier")
