"""What of a configuration stands on a card."""

from hf_factuality import MaskDPOConfig, TokenRewardPPOConfig
from hf_factuality.hub.card import changed_settings


def test_changed_settings_show_methods_and_no_places(tmp_path):
    (tmp_path / "my-critic").mkdir()
    args = TokenRewardPPOConfig(
        str(tmp_path), lam=0.9, critic_model=str(tmp_path / "my-critic"), learning_rate=3e-7, use_cpu=True, bf16=False,
        hub_model_id="somebody/model", hub_token="secret", run_name="mine", vllm_server_host="10.0.0.1",
    )  # fmt: skip
    found = dict(changed_settings(args))
    assert found["lam"] == 0.9 and found["learning_rate"] == 3e-7 and found["critic_model"] == "my-critic"
    assert "gamma" not in found
    text = str(found)
    assert not any(word in text for word in (str(tmp_path), "secret", "10.0.0.1", "mine", "somebody"))


def test_settings_of_mask_dpo():
    args = MaskDPOConfig(
        "out",
        max_length=512,
        truncation_mode="keep_end",
        ld_alpha=0.5,
        tokens_outside="keep",
        use_cpu=True,
        bf16=False,
    )
    found = dict(changed_settings(args))
    assert (found["max_length"], found["truncation_mode"], found["ld_alpha"]) == (512, "keep_end", 0.5)
    assert found["tokens_outside"] == "keep" and "chosen_labels" not in found
